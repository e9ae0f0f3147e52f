"""Deciding what an engine's log-probabilities are, and reading recorded scores."""

from __future__ import annotations

import pytest
from hintloop_rollout_proxy.engines.probe import Scores, decide


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
