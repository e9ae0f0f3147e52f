"""An engine in the process: the score of a token is a fixed function of it and the one before."""

from __future__ import annotations

import itertools
from typing import Any

from hintloop_teacher.dialects.base import EngineFacts, NoCandidates, Question
from hintloop_teacher.forced import RawScores


def score_of(previous: int, token: int) -> float:
    """A log-probability, different for every pair."""
    return -8.0 - ((previous * 31 + token * 17) % 997) / 100


class FakeDialect(NoCandidates):
    """``shift`` moves scores against tokens, as a wrong engine or client would."""

    name = "fake"
    proves_ids = True
    takes_ids = True
    begins_late = False

    def __init__(self, *, shift: int = 0, value: float | None = 0.0) -> None:
        self.shift = shift
        self.value = value
        self.calls: list[tuple[list[int], list[int], int]] = []
        self.messages: list[Any] = []

    async def facts(self, wanted_model: str) -> EngineFacts:
        return EngineFacts("fake", "1", "teacher", 64)

    async def score(self, model: str, question: Question) -> RawScores:
        prompt_ids, response_ids, top_k = question.prompt_ids, question.response_ids, question.top_k
        self.calls.append((list(prompt_ids), list(response_ids), top_k))
        self.messages.append(question.messages)
        scores = [score_of(before, token) for before, token in itertools.pairwise(question.ids)]
        scores = scores[self.shift :] + scores[: self.shift]
        values: list[float | None] = list(scores[len(prompt_ids) - 1 :])
        if self.value is None:
            values[-1] = None
        rows = [
            [(k, value if k == token and value else -3.0 - k) for k in range(top_k)]
            for token, value in zip(response_ids, values, strict=True)
        ]
        return RawScores(list(response_ids), values, rows if top_k else None)

    async def encode(self, model: str, text: str) -> list[int] | None:
        return None
