"""The llm backend: asks a chat model for scores and hints, several votes a question, all at once."""

from __future__ import annotations

import asyncio
from collections import Counter

import structlog
from hintloop_contract.config.schema import OpdSection, PrmSection
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Judgement, Vote

from hintloop_judge.backends import Opinion
from hintloop_judge.conversation import Exchange
from hintloop_judge.endpoint import ChatEndpoint
from hintloop_judge.errors import VoteError
from hintloop_judge.metrics import JudgeMetrics
from hintloop_judge.prompts import SCHEMAS, Prompts, Question, transcript
from hintloop_judge.selection import has_quorum, majority_score, select_hint
from hintloop_judge.votes import parse_vote

BACKEND = "llm"


class LlmBackend:
    """Judges by a chat model behind ``prm.prm_url``."""

    name = BACKEND

    def __init__(
        self, opd: OpdSection, prm: PrmSection, endpoint: ChatEndpoint, prompts: Prompts, metrics: JudgeMetrics
    ) -> None:
        """The structured output of the engine is probed at the first use, or by :meth:`ready`."""
        self._opd = opd
        self._prm = prm
        self._endpoint = endpoint
        self._prompts = prompts
        self._metrics = metrics
        self._schema: bool | None = None
        self._probing = asyncio.Lock()
        self._log = structlog.get_logger()

    @property
    def model(self) -> str | None:
        """The judge's model, once known."""
        return self._endpoint.model

    @property
    def schema(self) -> bool | None:
        """Whether the engine takes a JSON schema; ``None`` before the probe."""
        return self._schema

    async def ready(self) -> bool:
        """Whether the engine answers; learns its model and whether it takes a JSON schema."""
        try:
            await self._endpoint.resolve_model()
            await self._probe_schema()
        except DependencyError as error:
            self._log.info("judge engine not ready", detail=error.detail)
            return False
        return True

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()

    async def judge(self, exchange: Exchange, *, score: bool, hint: bool) -> Opinion:
        """Ask what is wanted. A question without quorum leaves its part ``None``; its votes say why.

        Raises:
            DependencyError: the engine is away.
        """
        schema = await self._probe_schema()
        ask_hint = hint and self._opd.enable_hint_extraction
        score_votes, hint_votes = await asyncio.gather(
            self._ask("score", exchange, schema) if score else _nothing(),
            self._ask("hint", exchange, schema) if ask_hint else _nothing(),
        )
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
        hint, rejected = select_hint(votes, transcript((exchange.answer,)), self._opd)
        self._count_rejected(rejected)
        return hint

    def _count_rejected(self, rejected: Counter[str]) -> None:
        for reason, number in rejected.items():
            self._metrics.hints_rejected.labels(reason=reason).inc(number)

    async def _ask(self, question: Question, exchange: Exchange, schema: bool) -> list[Vote]:
        prompt = self._prompts.render(question, exchange, self._opd, schema=schema)
        votes = await asyncio.gather(*(self._vote(question, prompt, schema) for _ in range(self.num_asked(question))))
        for vote in votes:
            self._metrics.votes.labels(question=question, outcome="failed" if vote.failed else "counted").inc()
            if vote.failed:
                self._log.debug("vote failed", question=question, reason=vote.failed)
        return list(votes)

    async def _vote(self, question: Question, prompt: str, schema: bool) -> Vote:
        try:
            completion = await self._endpoint.complete(
                prompt,
                temperature=self._temperature(question),
                max_tokens=self._prm.hint_max_tokens,
                schema=SCHEMAS[question] if schema else None,
            )
        except VoteError as error:
            return Vote(failed=str(error))
        return parse_vote(question, completion, schema=schema)

    async def _probe_schema(self) -> bool:
        """Whether a tiny request under a schema comes back as that schema says."""
        async with self._probing:
            if self._schema is None:
                self._schema = await self._takes_schema()
                self._log.info("judge engine probed", model=self.model, structured_output=self._schema)
            return self._schema

    async def _takes_schema(self) -> bool:
        try:
            completion = await self._endpoint.complete(
                'Reply with JSON: {"score": 0}.', temperature=0.0, max_tokens=32, schema=SCHEMAS["score"]
            )
        except VoteError:
            return False
        return parse_vote("score", completion, schema=True).failed is None


async def _nothing() -> list[Vote]:
    """The votes of a question that is not asked."""
    return []
