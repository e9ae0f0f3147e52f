"""The rules_then_llm backend: the rules settle what they can, the model is asked for the rest.

A score of +1 or -1 by the rules stands, and so does a hint in the user's own words. Where the rules say 0 or nothing,
or find no hint, the model is asked that question alone.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hintloop_contract.messages import Judgement

from hintloop_judge.backends import Opinion
from hintloop_judge.conversation import Exchange
from hintloop_judge.llm import LlmBackend
from hintloop_judge.metrics import JudgeMetrics
from hintloop_judge.rules import RulesBackend
from hintloop_judge.unjudged import has_reaction

BACKEND = "rules_then_llm"


class RulesThenLlm:
    """Rules first, a chat model for what they leave open."""

    name = BACKEND

    def __init__(self, rules: RulesBackend, llm: LlmBackend, metrics: JudgeMetrics) -> None:
        """Both are closed with it."""
        self._rules = rules
        self.llm = llm
        self._metrics = metrics

    @property
    def model(self) -> str | None:
        """The model asked for the rest, once known."""
        return self.llm.model

    def describe(self) -> dict[str, Any]:
        """What ``GET /v1/prm`` shows of it."""
        return {**self._rules.describe(), **self.llm.describe(), "backend": self.name}

    async def judge(self, exchange: Exchange, *, score: bool, hint: bool) -> Opinion:
        """Answer the wanted questions. The votes are the rules' one, then the model's.

        Raises:
            DependencyError: the model is needed and its engine is away.
        """
        exchange = self._rules.without_ignored(exchange)
        by_rules = (await self._rules.judge(exchange, score=score, hint=hint)).judgement
        if not has_reaction(exchange):
            return Opinion(msgspec.structs.replace(by_rules, backend=self.name))
        ask_score = score and by_rules.score not in (1, -1)
        ask_hint = hint and by_rules.hint is None and self.llm.extracts_hints
        for question, wanted, asked in (("score", score, ask_score), ("hint", hint, ask_hint)):
            if wanted:
                self._metrics.settled.labels(question=question, by="llm" if asked else "rules").inc()
        if not (ask_score or ask_hint):
            return Opinion(Judgement(score=by_rules.score, hint=by_rules.hint, votes=by_rules.votes, backend=self.name))
        opinion = await self.llm.judge(exchange, score=ask_score, hint=ask_hint)
        by_model = opinion.judgement
        judgement = Judgement(
            score=by_model.score if ask_score else by_rules.score,
            hint=by_model.hint if ask_hint else by_rules.hint,
            votes=(*by_rules.votes, *by_model.votes),
            backend=self.name,
            model=by_model.model,
        )
        return Opinion(judgement, opinion.failed)

    async def ready(self) -> bool:
        """Whether the model's engine answers."""
        return await self.llm.ready()

    async def close(self) -> None:
        """Close the connections."""
        await self.llm.close()
