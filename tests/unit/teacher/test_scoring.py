from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hintloop_contract.errors import DependencyError
from hintloop_teacher.dialects.base import EngineFacts, Question
from hintloop_teacher.errors import MisalignedError, ProbeError, RefusedError, TooLongError
from hintloop_teacher.forced import RawScores
from hintloop_teacher.probe import _check_alignment, _check_top_k
from hintloop_teacher.scoring import ForcedScorer

from .fake_dialect import FakeDialect, score_of

Row = list[tuple[int, float]]
Lie = Callable[[Row], Row]

FACTS = EngineFacts("fake", "1", "teacher", 11)


def scorer_of(dialect: FakeDialect, facts: EngineFacts = FACTS) -> ForcedScorer:
    return ForcedScorer(dialect, facts, vocabulary_size=1000, max_concurrency=2)


async def test_scores_belong_to_their_tokens() -> None:
    scores = await scorer_of(FakeDialect()).score([5, 6], [7, 8, 9])
    assert scores.logprobs.tolist() == pytest.approx([score_of(6, 7), score_of(7, 8), score_of(8, 9)])


@pytest.mark.parametrize(
    ("prompt", "response", "words"),
    [
        ([], [1], "prompt_ids is empty"),
        ([1], [], "response_ids is empty"),
        ([1, 1000], [1], "prompt token 1 is 1000"),
        ([1], [2, -1], "response token 1 is -1"),
    ],
)
async def test_wrong_ids_are_never_sent(prompt: list[int], response: list[int], words: str) -> None:
    dialect = FakeDialect()
    with pytest.raises(MisalignedError, match=words):
        await scorer_of(dialect).score(prompt, response)
    assert dialect.calls == []


async def test_more_candidates_than_tokens_are_never_asked() -> None:
    dialect = FakeDialect()
    with pytest.raises(MisalignedError, match="top_k is 1001; the vocabulary has 1000"):
        await scorer_of(dialect).score([1], [2], 1001)
    assert dialect.calls == []


async def test_the_context_is_the_limit() -> None:
    dialect = FakeDialect()
    assert len((await scorer_of(dialect).score([1] * 8, [2] * 3)).logprobs) == 3
    with pytest.raises(TooLongError, match=r"12 tokens.*takes 11"):
        await scorer_of(dialect).score([1] * 9, [2] * 3)
    assert len(dialect.calls) == 1


async def test_alignment_is_proven_at_start() -> None:
    wide = EngineFacts("fake", "1", "teacher", 64)
    assert await _check_alignment(scorer_of(FakeDialect(), wide)) == "aligned"
    for shift in (1, -1):
        with pytest.raises(ProbeError, match="shifted"):
            await _check_alignment(scorer_of(FakeDialect(shift=shift), wide))


class Refusing(FakeDialect):
    """Refuses candidates above 4, and everything with ``status`` when it is set."""

    status: int | None = None

    async def score(self, model: str, question: Question) -> RawScores:
        if self.status:
            raise RefusedError("http://x", self.status, "no")
        if question.top_k > 4:
            raise RefusedError("http://x", 400, "max allowed: 4")
        return await super().score(model, question)


class Ranking(Refusing):
    """One distribution over 1000 tokens gives scores and candidates; ``lie`` falsifies each row of candidates."""

    def __init__(self, lie: Lie = lambda row: row) -> None:
        super().__init__()
        self.lie = lie

    async def score(self, model: str, question: Question) -> RawScores:
        raw = await super().score(model, question)
        response_ids, top_k = question.response_ids, question.top_k
        before = [question.prompt_ids[-1], *response_ids[:-1]]
        scores = [np.array([score_of(b, token) for token in range(1000)]) for b in before]
        rows = [row - np.log(np.exp(row).sum()) for row in scores]
        ranked = [[(int(token), float(row[token])) for token in np.argsort(-row)] for row in rows]
        values = [float(row[token]) for row, token in zip(rows, response_ids, strict=True)]
        return replace(raw, logprobs=values, candidates=[self.lie(row)[:top_k] for row in ranked])


async def test_too_many_candidates_are_found_at_start() -> None:
    assert await _check_top_k(scorer_of(Ranking()), 4) == "4 candidates"
    assert await _check_top_k(scorer_of(Ranking()), 1) == "1 candidates"
    assert await _check_top_k(scorer_of(Ranking()), 0) == "not needed"
    with pytest.raises(ProbeError, match=r"refuses 5 candidates.*max allowed: 4.*topk_opd\.top_k"):
        await _check_top_k(scorer_of(Refusing()), 5)


@pytest.mark.parametrize(
    "lie",
    [
        lambda row: [(k, -3.0 - k) for k in range(len(row))],  # rows that are always the same
        lambda row: [(token, value - 1.0) for token, value in row],  # values of another temperature
        lambda row: [(row[-1 - i][0], value) for i, (_, value) in enumerate(row)],  # ids of other tokens
    ],
)
async def test_candidates_that_are_not_the_engines_own_are_found_at_start(lie: Lie) -> None:
    with pytest.raises((ProbeError, MisalignedError), match="candidate"):
        await _check_top_k(scorer_of(Ranking(lie)), 4)


async def test_a_route_that_is_gone_is_a_dependency() -> None:
    dialect = Refusing()
    dialect.status = 404
    with pytest.raises(DependencyError):
        await scorer_of(dialect).score([1], [2])
    dialect.status = 400
    with pytest.raises(RefusedError):
        await scorer_of(dialect).score([1], [2])
