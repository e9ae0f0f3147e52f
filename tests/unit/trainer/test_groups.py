from __future__ import annotations

import dataclasses
import statistics

import pytest
from hintloop_contract.tensors import pack
from hintloop_trainer import batch as batching
from hintloop_trainer.batch import Example
from hintloop_trainer.groups import relative_scores
from hypothesis import given
from hypothesis import strategies as st

from .conftest import VOCAB, make_sample

ONE, OTHER = pack([5, 6, 7], "int32"), pack([5, 6], "int32")


def example(turn: int, score: int | None, prompt: object = ONE) -> Example:
    return batching.read_example(make_sample(turn, score=score, prompt_ids=prompt), VOCAB)


def test_answers_to_one_prompt_are_compared_and_others_keep_their_score() -> None:
    given_ = [example(0, 1), example(1, -1), example(2, 1), example(3, 1, OTHER), example(4, None)]
    found = relative_scores(given_, 2)
    mean, deviation = 1 / 3, statistics.pstdev([1, -1, 1])
    expected = [(score - mean) / deviation for score in (1, -1, 1)]
    assert [item.relative for item in found[:3]] == pytest.approx(expected, rel=1e-5)
    # An answer alone with its prompt, and one without a score.
    assert found[3:] == given_[3:]
    assert [dataclasses.replace(item, relative=None) for item in found] == given_


def test_smaller_groups_than_asked_keep_their_scores() -> None:
    given_ = [example(0, 1), example(1, -1)]
    assert relative_scores(given_, 3) == given_
    assert relative_scores(given_, 1) == given_


def test_answers_that_are_all_alike_teach_nothing() -> None:
    assert [item.relative for item in relative_scores([example(turn, -1) for turn in range(3)], 2)] == [0.0] * 3


@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=2, max_size=8))
def test_a_group_is_centred_with_unit_deviation(scores: list[int]) -> None:
    found = [item.relative or 0.0 for item in relative_scores([example(0, score) for score in scores], 2)]
    assert statistics.fmean(found) == pytest.approx(0.0, abs=1e-9)
    spread = 1.0 if len(set(scores)) > 1 else 0.0
    assert statistics.pstdev(found) == pytest.approx(spread, abs=1e-5)
