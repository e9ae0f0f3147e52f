"""The llm backend: asks a chat model for scores and hints, several votes a question, all at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import structlog
from hintloop_contract.config.schema import OpdSection, PrmSection
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Judgement, Vote

from hintloop_judge.backends import Opinion
from hintloop_judge.cache import VoteCache, question_key
from hintloop_judge.conversation import Exchange
from hintloop_judge.endpoint import ChatEndpoint
from hintloop_judge.errors import VoteError
from hintloop_judge.metrics import JudgeMetrics
from hintloop_judge.probing import Abilities, probe
from hintloop_judge.prompts import QUESTIONS, SCHEMAS, Prompts, Question, message_body
from hintloop_judge.selection import has_quorum, majority_score, select_hint
from hintloop_judge.votes import parse_votes

BACKEND = "llm"


class LlmBackend:
    """Judges by a chat model behind ``prm.judge_url`` or ``prm.prm_url``."""

    name = BACKEND

    def __init__(
        self,
        opd: OpdSection,
        prm: PrmSection,
        endpoint: ChatEndpoint,
        prompts: Prompts,
        metrics: JudgeMetrics,
        cache: VoteCache | None = None,
    ) -> None:
        """What the engine can do is probed at the first use, or by :meth:`ready`. Without ``cache`` no vote is kept."""
        self._opd = opd
        self._prm = prm
        self._endpoint = endpoint
        self._prompts = prompts
        self._metrics = metrics
        self._cache = cache
        self._abilities: Abilities | None = None
        self._probing = asyncio.Lock()
        self._problem: str | None = None
        self._log = structlog.get_logger()

    @property
    def model(self) -> str | None:
        """The judge's model, once known."""
        return self._endpoint.model

    @property
    def abilities(self) -> Abilities | None:
        """What the engine can do; ``None`` before the probe."""
        return self._abilities

    @property
    def extracts_hints(self) -> bool:
        """Whether hints are asked for at all."""
        return self._opd.enable_hint_extraction

    def describe(self) -> dict[str, Any]:
        """What ``GET /v1/prm`` shows of it; nulls before the probe."""
        abilities = self._abilities
        asked = {question: self.num_asked(question) for question in QUESTIONS}
        return {
            "backend": self.name,
            "model": self.model,
            "url": self._endpoint.url,
            "circuit": self._endpoint.circuit,
            "problem": self._problem,
            "structured_output": None if abilities is None else abilities.structured_output,
            "several_choices": None if abilities is None else abilities.several_choices,
            "votes_asked": asked,
            "notes": equal_votes(self._opd, self._prm),
        }

    async def ready(self) -> bool:
        """Whether the engine answers questions; learns its model and what it can do."""
        try:
            await self._endpoint.resolve_model()
            await self._probed()
            if self._problem is not None:
                # A list of models says little; a question is what failed.
                await self._endpoint.complete("Reply with OK.", temperature=0.0, max_tokens=1)
        except VoteError as error:
            # It answers; whether it answers questions is seen at the next one.
            self._log.info("judge engine refuses a plain question", detail=str(error))
        except DependencyError as error:
            self._log.info("judge engine not ready", detail=error.detail)
            self._problem = error.detail
            return False
        self._problem = None
        return True

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()

    async def judge(self, exchange: Exchange, *, score: bool, hint: bool) -> Opinion:
        """Ask what is wanted. A question without quorum leaves its part ``None``; its votes say why.

        Raises:
            DependencyError: the engine is away.
        """
        ask_hint = hint and self._opd.enable_hint_extraction
        try:
            abilities = await self._probed()
            score_votes, hint_votes = await asyncio.gather(
                self._votes("score", exchange, abilities) if score else _nothing(),
                self._votes("hint", exchange, abilities) if ask_hint else _nothing(),
            )
        except DependencyError as error:
            self._problem = error.detail
            raise
        failed = {
            question
            for question, votes in (("score", score_votes), ("hint", hint_votes))
            if votes and not has_quorum(votes, self._prm.quorum)
        }
        judgement = Judgement(
            score=None if "score" in failed else majority_score(score_votes),
            hint=None if "hint" in failed else self._choose(hint_votes, exchange),
            votes=(*score_votes, *hint_votes),
            backend=self.name,
            model=self.model,
        )
        return Opinion(judgement, frozenset(failed))

    def num_asked(self, question: Question) -> int:
        """Votes asked per question: equal ones at temperature 0 are asked once."""
        return self._opd.judge_vote_count if self._temperature(question) > 0 else 1

    def _temperature(self, question: Question) -> float:
        return self._opd.judge_temperature if question == "score" else self._prm.hint_temperature

    def _choose(self, votes: list[Vote], exchange: Exchange) -> str | None:
        hint, rejected = select_hint(votes, message_body(exchange.answer), self._opd)
        self._count_rejected(rejected)
        return hint

    def _count_rejected(self, rejected: Counter[str]) -> None:
        for reason, number in rejected.items():
            self._metrics.hints_rejected.labels(reason=reason).inc(number)

    async def _votes(self, question: Question, exchange: Exchange, abilities: Abilities) -> list[Vote]:
        """Votes kept from the same question before, or new ones. Only votes that reach the quorum are kept."""
        key = self._key(question, exchange, abilities)
        kept = await self._cache.find(key) if self._cache is not None else None
        self._metrics.kept.labels(question=question, found="no" if kept is None else "yes").inc()
        if kept is not None:
            return kept
        votes = await self._ask(question, exchange, abilities)
        if self._cache is not None and has_quorum(votes, self._prm.quorum):
            await self._cache.keep(key, votes)
        return votes

    def _key(self, question: Question, exchange: Exchange, abilities: Abilities) -> str:
        return question_key(
            question=question,
            prompt=self._prompts.render(question, exchange, self._opd, schema=abilities.structured_output, nonce=""),
            engine=self._endpoint.url,
            model=self.model,
            temperature=self._temperature(question),
            max_tokens=self._prm.hint_max_tokens,
            num=self.num_asked(question),
        )

    async def _ask(self, question: Question, exchange: Exchange, abilities: Abilities) -> list[Vote]:
        """All votes of a question: in one request where the engine gives several choices, else each in its own."""
        schema = abilities.structured_output
        prompt = self._prompts.render(question, exchange, self._opd, schema=schema)
        num = self.num_asked(question)
        parts = [num] if abilities.several_choices else [1] * num
        answers = await asyncio.gather(*(self._request(question, prompt, part, schema) for part in parts))
        votes = [vote for answer in answers for vote in answer]
        for vote in votes:
            self._metrics.votes.labels(question=question, outcome="failed" if vote.failed else "counted").inc()
        return votes

    async def _request(self, question: Question, prompt: str, num: int, schema: bool) -> list[Vote]:
        try:
            completion = await self._endpoint.complete(
                prompt,
                temperature=self._temperature(question),
                max_tokens=self._prm.hint_max_tokens,
                schema=SCHEMAS[question] if schema else None,
                num=num,
            )
        except VoteError as error:
            return [Vote(failed=str(error))] * num
        return parse_votes(question, completion, num, schema=schema)

    async def _probed(self) -> Abilities:
        async with self._probing:
            if self._abilities is None:
                several = any(self.num_asked(question) > 1 for question in QUESTIONS)
                self._abilities = await probe(self._endpoint, several_wanted=several)
                self._log.info(
                    "judge engine probed",
                    model=self.model,
                    structured_output=self._abilities.structured_output,
                    several_choices=self._abilities.several_choices,
                )
            return self._abilities


def equal_votes(opd: OpdSection, prm: PrmSection) -> list[str]:
    """What to tell whoever set several votes at temperature 0: they would be equal, so one is asked."""
    keys = {
        "score": ("opd.judge_temperature", opd.judge_temperature),
        "hint": ("prm.hint_temperature", prm.hint_temperature),
    }
    return [
        f"{opd.judge_vote_count} {question} votes at temperature 0 are one vote; it is asked once. "
        f"Raise {key} for votes that can differ"
        for question, (key, temperature) in keys.items()
        if opd.judge_vote_count > 1 and temperature == 0
    ]


async def _nothing() -> list[Vote]:
    """The votes of a question that is not asked."""
    return []
