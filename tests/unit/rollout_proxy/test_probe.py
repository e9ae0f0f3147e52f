"""Deciding what an engine's log-probabilities are, and reading recorded scores."""

from __future__ import annotations

import pytest
from hintloop_rollout_proxy.engines.probe import Scores, decide, same_alternatives


@pytest.mark.parametrize(
    ("sampled", "scored", "space"),
    [
        ([-2.01, -3.0], [-2.0, -3.02], "raw"),
        ([-0.3, -0.9], [-2.0, -3.0], "processed"),
        ([-0.001, -0.0], [-0.01, -0.02], None),
        ([-1.9, -2.9], [-2.0, -3.0], None),
    ],
)
def test_decide(sampled: list[float], scored: list[float], space: str | None) -> None:
    assert decide(Scores(sampled, scored), "processed") == space


def test_unequal_lengths_decide_nothing() -> None:
    with pytest.raises(ValueError):
        decide(Scores([-1.0], [-1.0, -2.0]), "processed")


@pytest.mark.parametrize(
    ("default", "same"),
    [
        ({"a": -0.5, "b": -1.501, "c": -2.5, "d": -3.5, "e": -4.5}, True),
        ({"a": -0.45, "b": -1.45, "c": -2.45, "d": -3.45, "e": -4.45}, False),
        ({"a": -0.5, "b": -9999.0, "c": -9999.0, "d": -9999.0, "e": -9999.0}, False),
        ({"a": -0.5, "b": -1.5}, False),
    ],
    ids=["noise", "95 % kept", "one kept", "others"],
)
def test_defaults_show_in_the_alternatives(default: dict[str, float], same: bool) -> None:
    neutral = {"a": -0.5, "b": -1.5, "c": -2.5, "d": -3.5, "e": -4.5}
    assert same_alternatives(default, neutral) is same
