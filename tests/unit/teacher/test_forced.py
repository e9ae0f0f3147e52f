"""Checks on forced scores, and the tail against arithmetic written another way."""

import math
from decimal import Decimal, getcontext

import numpy as np
import pytest
from hintloop_contract.messages import DropReason
from hintloop_teacher.errors import MisalignedError, MissingError
from hintloop_teacher.forced import EMPTY_TAIL, RawScores, check_scores, missing, tail_logprobs


def raw(values: list[object], ids: list[int | None] | None = None, candidates: object = None) -> RawScores:
    return RawScores(ids if ids is not None else list(range(len(values))), values, candidates)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "null"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (0.5, "positive"),
        (2e-6, "positive"),
        (-9999.0, "placeholder"),
        ("-1.0", "no number"),
        (True, "no number"),
    ],
)
def test_missing_is_missing(value: object, reason: str) -> None:
    assert reason in (missing(value) or "")
    with pytest.raises(MissingError, match="response token 1") as caught:
        check_scores(raw([-1.0, value, -2.0]), [0, 1, 2], 0)
    assert caught.value.reason is DropReason.TEACHER_MISSING


def test_values_are_kept_as_they_are() -> None:
    scores = check_scores(raw([0.0, 5e-7, -1.25, -40.0]), [0, 1, 2, 3], 0)
    assert scores.logprobs.dtype == np.float32
    assert scores.logprobs.tolist() == np.asarray([0.0, 5e-7, -1.25, -40.0], np.float32).tolist()
    assert scores.topk_ids is None and scores.tail_logprobs is None


@pytest.mark.parametrize("ids", [[0, 1], [0, 1, 2, 3], [1, 2, 3], [0, 1, None]])
def test_other_tokens_are_misaligned(ids: list[int | None]) -> None:
    with pytest.raises(MisalignedError) as caught:
        check_scores(RawScores(ids, [-1.0] * len(ids)), [0, 1, 2], 0)
    assert caught.value.reason is DropReason.TEACHER_MISALIGNED


def test_candidates_are_ordered_and_complete() -> None:
    rows = [[(7, -3.0), (9, -0.5), (4, -1.5)]]
    scores = check_scores(raw([-1.5], [4], rows), [4], 3)
    assert scores.topk_ids is not None and scores.topk_logprobs is not None
    assert scores.topk_ids.tolist() == [[9, 4, 7]]
    assert scores.topk_logprobs.tolist() == [[-0.5, -1.5, -3.0]]


@pytest.mark.parametrize(
    ("value", "token", "words"),
    [(-1.4, 4, "another log-probability among"), (-1.0, 5, "more likely than a candidate")],
)
def test_candidates_of_another_place(value: float, token: int, words: str) -> None:
    rows = [[(7, -3.0), (9, -0.5), (4, -1.5)]]
    with pytest.raises(MisalignedError, match=f"response token 0 .*{words}"):
        check_scores(raw([value], [token], rows), [token], 3)
    assert check_scores(raw([-3.0005], [5], rows), [5], 3).topk_ids is not None


@pytest.mark.parametrize(
    "rows",
    [
        None,
        [],
        [[(7, -3.0), (9, -0.5)]],
        [[(7, -3.0), (7, -0.5), (4, -1.5)]],
        [[(7, -3.0), (9, None), (4, -1.5)]],
        [[(7, float("-inf")), (9, -0.5), (4, -1.5)]],
    ],
)
def test_missing_candidates(rows: object) -> None:
    with pytest.raises(MissingError):
        check_scores(raw([-1.5], [4], rows), [4], 3)


def test_tail_equals_exact_arithmetic() -> None:
    getcontext().prec = 60
    rng = np.random.default_rng(0)
    rows = []
    for scale in (0.1, 1.0, 5.0, 20.0):
        logits = rng.normal(size=200) * scale
        rows.append(np.sort(logits - np.logaddexp.reduce(logits))[::-1][:16])
    found = tail_logprobs(np.asarray(rows))
    for row, tail in zip(rows, found, strict=True):
        rest = 1 - sum((Decimal(float(value)).exp() for value in row), Decimal(0))
        if rest > Decimal(2) ** -24:
            assert tail == pytest.approx(float(rest.ln()), abs=1e-5)
        else:
            assert tail == pytest.approx(EMPTY_TAIL)
    assert np.isfinite(found).all()
    assert found.dtype == np.float32


def test_a_light_tail_keeps_its_digits() -> None:
    # 1 - p computed in float32 would give 9.536743e-07 here.
    tail = 1e-6
    (found,) = tail_logprobs(np.asarray([[math.log1p(-tail)]]))
    assert found == pytest.approx(math.log(tail), abs=1e-5)


def test_mass_above_one() -> None:
    rounding = math.log(0.5) + 1e-7
    (found,) = tail_logprobs(np.asarray([[rounding, rounding]]))
    assert found == pytest.approx(EMPTY_TAIL)
    with pytest.raises(MissingError, match="temperature 1"):
        tail_logprobs(np.asarray([[-0.1, -0.5]]))
