"""What a replay says in figures, against the same told another way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hintloop.replay.plots import replay_plots
from hintloop.replay.results import document
from hintloop.replay.spread import Spread
from hintloop.replay.store import Store
from hintloop.replay.summary import Agreement, SideFigures, comparable, summed_up
from hintloop.replay.tables import agreement_table, differing_table, side_tables
from hintloop.replay.until import Until
from hintloop_contract.history import Trained
from hintloop_contract.messages import Drop, Judgement, Sample, Sampling, Vote
from hintloop_contract.tensors import pack
from scipy.stats import pearsonr

BEHAVIOUR = np.array([-1.0, -2.0, -0.5], np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "replay.sqlite3") as store:
        yield store


def sample(turn_id: str, teacher: Any, **changes: Any) -> Sample:
    values: dict[str, Any] = {
        "turn_id": turn_id,
        "session_id": "s",
        "prompt_ids": pack([1], "int32"),
        "response_ids": pack([1, 2, 3], "int32"),
        "behaviour_logprobs": pack(BEHAVIOUR, "float32"),
        "behaviour_space": "raw",
        "sampling": Sampling(),
        "version_oldest": 1,
        "version_newest": 1,
        "captured_ms": 0,
        "teacher_logprobs": None if teacher is None else pack(np.asarray(teacher, np.float32), "float32"),
    }
    return Sample(**{**values, **changes})


def fill(store: Store, side: str, scores: list[int | None], hints: list[str | None]) -> None:
    """One judged turn a score."""
    for place, (score, hint) in enumerate(zip(scores, hints, strict=True)):
        store.expect(side, f"t{place}", place + 1)
        votes = (Vote(score=score, hint=hint), Vote(failed="cut by the limit: 128 tokens"), Vote(score=1))
        store.judged(side, f"t{place}", Judgement(score=score, hint=hint, votes=votes, backend="llm"))


def test_a_spread_tells_what_numpy_tells() -> None:
    values = np.random.default_rng(3).normal(0.4, 3.0, 5_000)
    values[:7] = (12.0, -11.0, 55.0, -60.0, 0.0, 10.0, -10.0)
    spread = Spread()
    for part in np.array_split(values, 9):
        spread.add(part)
    assert spread.count == 5_000
    assert spread.mean == pytest.approx(values.mean())
    assert spread.std == pytest.approx(values.std())
    assert spread.positive == (values > 0).sum()
    assert spread.negative == (values < 0).sum()
    assert spread.far == (np.abs(values) > 10).sum()
    for percent in (1, 25, 50, 99):
        assert spread.percentile(percent) == pytest.approx(np.percentile(values, percent), abs=0.02)
    assert Spread().as_dict() == {}


def test_what_is_exact_to_a_hundredth_is_told_exactly() -> None:
    for value in (0.0, -0.25, 1.5, 40.0, -40.0):
        spread = Spread()
        spread.add([value] * 3)
        assert set(spread.as_dict()["percentiles"].values()) == {value}


def test_a_side_counts_votes_scores_hints_and_drops(store: Store) -> None:
    fill(store, "a", [1, -1, 0, None], ["Be brief.", "Be brief.", None, None])
    store.dropped("a", [Drop(turn_id="t2", stage="judge", reason="neutral", detail="score 0")], "5-0")
    (side,), agreement = summed_up(store, {"a": "a"}, Until.JUDGE)
    assert agreement is None
    assert side.outcomes == {"judged": 3, "dropped": 1}
    assert side.drops == {"judge:neutral": 1}
    found = side.as_dict()
    assert found["scores"] == {"+1": 1, "0": 1, "-1": 1, "none": 1}
    assert found["hints"] == {"given": 2, "share": 0.5, "different": 1}
    # Votes that were cut differ in what they quote, and fail for one reason.
    assert found["votes"]["failed"] == {"cut by the limit": 4}
    assert found["votes"]["asked"] == 12
    # Of the three turns with two scores, two (-1 and +1, 0 and +1) are split.
    assert found["votes"]["split_share"] == pytest.approx(2 / 3)


def test_agreement_is_that_of_the_same_turns(store: Store) -> None:
    a: list[int | None] = [1, 1, -1, -1, 0, None]
    b: list[int | None] = [1, -1, -1, -1, 0, None]
    fill(store, "a", a, ["x", "same", None, "y", None, None])
    fill(store, "b", b, ["z", "same", "only", None, None, None])
    _, agreement = summed_up(store, {"a": "a", "b": "b"}, Until.JUDGE)
    assert agreement is not None
    found = agreement.as_dict()
    assert found["score_agreement"] == pytest.approx(5 / 6)
    chance = sum(a.count(score) * b.count(score) for score in (1, 0, -1, None)) / 36
    assert found["score_kappa"] == pytest.approx((5 / 6 - chance) / (1 - chance))
    assert found["hints"] == {"both": 2, "same": 1, "only_b": 1, "only_a": 1, "neither": 2}
    assert found["same_hint_share"] == 0.5
    assert [(turn["turn_id"], turn["a"]["score"], turn["b"]["score"]) for turn in found["differing"]] == [("t1", 1, -1)]
    assert differing_table(agreement).rows[0][1:3] == ("t1", "+1: same")


def test_scores_are_not_compared_where_one_side_was_asked_for_none(store: Store) -> None:
    fill(store, "a", [1, -1], ["x", None])
    fill(store, "b", [None, None], ["x", "y"])
    sides, agreement = summed_up(store, {"a": "a", "b": "b"}, Until.JUDGE)
    assert agreement is not None
    found = agreement.as_dict()
    assert (found["score_agreement"], found["score_kappa"], found["differing"]) == (None, None, [])
    rows = dict(agreement_table(agreement).rows)
    assert rows["scores are not compared"] == "one side gave none"
    assert rows["hint from both"] == "1"
    assert [plot.title for plot in replay_plots(sides, agreement)] == ["Scores by the judge"]


def test_the_same_tokens_are_compared_by_their_advantages(store: Store) -> None:
    teachers = {"a": [-0.5, -2.5, -0.25], "b": [-0.9, -2.0, -1.5]}
    for side, teacher in teachers.items():
        fill(store, side, [1], ["x"])
        store.taught(side, sample("t0", teacher))
    sides, agreement = summed_up(store, {"a": "a", "b": "b"}, Until.TEACHER)
    assert agreement is not None
    mine, theirs = (np.float32(teacher) - BEHAVIOUR for teacher in teachers.values())
    assert agreement.correlation == pytest.approx(pearsonr(mine, theirs).statistic, abs=1e-6)
    assert agreement.same_sign == (np.sign(mine) == np.sign(theirs)).sum()
    assert sides[0].advantages.mean == pytest.approx(mine.mean())


def test_values_that_are_all_the_same_correlate_with_nothing() -> None:
    for mine, theirs in ((0.1, 0.2), (-0.7, 0.1), (0.0, 0.0), (-1.0, -1.0)):
        agreement = Agreement()
        for count in (7, 9, 13, 500, 333):
            a, b = np.full(count, np.float32(mine), np.float64), np.full(count, np.float32(theirs), np.float64)
            agreement.tokens += count
            agreement.sums += (a.sum(), b.sum(), (a * a).sum(), (b * b).sum(), (a * b).sum())
        assert agreement.correlation is None


@pytest.mark.parametrize(
    ("space", "sampling", "expected"),
    [
        ("raw", Sampling(temperature=0.3, top_p=0.5), True),
        ("after_temperature", Sampling(temperature=1.0, top_p=0.5), True),
        ("after_temperature", Sampling(temperature=0.7), False),
        ("processed", Sampling(), True),
        ("processed", Sampling(top_p=0.9), False),
        ("processed", Sampling(top_k=5), False),
        ("processed", Sampling(constrained=True), False),
    ],
)
def test_log_probabilities_of_another_temperature_are_not_compared(
    store: Store, space: str, sampling: Sampling, expected: bool
) -> None:
    taught = sample("t0", [-1.0, -1.0, -1.0], behaviour_space=space, sampling=sampling)
    assert comparable(taught) is expected
    fill(store, "a", [1], ["x"])
    store.taught("a", taught)
    (side,), _ = summed_up(store, {"a": "a"}, Until.TEACHER)
    assert (side.advantages.count, side.incomparable) == ((3, 0) if expected else (0, 1))


def test_with_a_trainer_its_own_advantages_count(store: Store) -> None:
    fill(store, "a", [1, 1], ["x", "x"])
    for turn in ("t0", "t1"):
        store.taught("a", sample(turn, [-1.0, -1.0, -1.0]))
    note = Trained(turn_id="t0", step=3, version=4, advantages=pack(np.float32([5, -5, 0]), "float32"))
    store.trained("a", [note], "7-0")
    store.left("a", ["t1"], "fewer than 2 were left")
    (side,), _ = summed_up(store, {"a": "a"}, Until.TRAINER)
    assert side.outcomes == {"trained": 1, "left": 1}
    assert (side.advantages.count, side.advantages.mean) == (3, 0.0)
    rows = list(store.rows("a"))
    first, second = (document(row, Until.TRAINER) for row in rows)
    assert first["trained"] == {"step": 3, "version": 4, "advantages": [5.0, -5.0, 0.0], "student_logprobs": None}
    assert (second["outcome"], second["detail"]) == ("left", "fewer than 2 were left")


def test_a_finding_made_again_doubles_nothing(store: Store) -> None:
    for _ in range(2):
        fill(store, "a", [1], ["x"])
        store.taught("a", sample("t0", [-1.0] * 3))
        store.dropped("a", [Drop(turn_id="t0", stage="train", reason="too_long", detail="9 tokens")], "5-0")
    (row,) = store.rows("a")
    assert (row.reason, row.stage, row.line) == ("too_long", "train", 1)
    assert store.note("a", "drops") == "5-0"


def test_half_a_transaction_is_none(store: Store) -> None:
    fill(store, "a", [1], ["x"])

    def drops() -> Iterator[Drop]:
        yield Drop(turn_id="t0", stage="train", reason="stale", detail="")
        raise RuntimeError("read no further")

    with pytest.raises(RuntimeError):
        store.dropped("a", drops(), "9-0")
    (row,) = store.rows("a")
    assert (row.reason, store.note("a", "drops")) == (None, None)


def test_tables_and_plots_hold_the_figures(store: Store) -> None:
    fill(store, "a", [1, -1], ["Be brief.", None])
    fill(store, "b", [1, 1], ["Be brief.", None])
    store.taught("a", sample("t0", [-0.5, -2.5, -0.25]))
    sides, agreement = summed_up(store, {"a": "a: as configured", "b": "b: other"}, Until.TEACHER)
    assert agreement is not None
    judge = {row[0]: row[1:] for row in side_tables(sides[0])[1].rows}
    assert judge["score −1"] == ("1", "50.0%")
    assert judge["failed, cut by the limit"] == ("2", "33.3%")
    rows = dict(agreement_table(agreement).rows)
    assert rows["a says −1, b says +1"] == "1"
    assert rows["same score"] == "50.0%"
    titles = [plot.title for plot in replay_plots(sides, agreement)]
    assert titles == ["Scores by the judge", "Scores of both sides, turn by turn", "Advantages by token, all turns"]


def test_nothing_found_is_no_failure() -> None:
    side = SideFigures("a", "a")
    assert side_tables(side) == []
    assert replay_plots([side], Agreement()) == []
    assert Agreement().as_dict()["score_kappa"] is None
    assert dict(agreement_table(Agreement()).rows)["turns that both judged"] == "0"
