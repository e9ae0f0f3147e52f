"""Each key of the loss moves it. That it moves as it should is what `test_objective` works out."""

from __future__ import annotations

from typing import Any

import pytest

from .test_objective import BOTH, evaluated, logits, made_batch, objective

COMBINE = {"estimator": "combine"}


def total(sections: dict[str, Any]) -> float:
    """The summed loss where the policy has moved far since the values before the step."""
    before = logits(0)
    return float(evaluated(objective(**sections), made_batch(**BOTH), before + 0.8 * logits(1), before).total)


def changed(sections: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    section, _, name = key.partition(".")
    return sections | {section: sections.get(section, {}) | {name: value}}


@pytest.mark.parametrize(
    ("key", "value", "sections"),
    [
        ("training.ppo_clip_epsilon", 0.05, {}),
        ("training.ppo_clip_epsilon_high", 0.01, {"advantage": {"estimator": "grpo"}}),
        ("training.kl_coef", 0.5, {"training": {"force_kl": True}}),
        ("training.kl_estimator", "k2", {"training": {"force_kl": True, "kl_coef": 0.5}}),
        ("training.entropy_coef", 0.5, {}),
        ("training.loss_reduction", "sample_mean", {}),
        ("training.is_correction", "off", {}),
        ("training.tis_cap", 0.1, {}),
        ("training.tis_floor", 1.5, {"training": {"is_correction": "mask"}}),
        ("opd.advantage_clip", 0.01, {}),
        ("advantage.w_rl", 0.5, {"advantage": COMBINE}),
        ("advantage.w_opd", 0.5, {"advantage": COMBINE}),
    ],
)
def test_each_key_of_the_loss_moves_it(key: str, value: Any, sections: dict[str, Any]) -> None:
    assert total(changed(sections, key, value)) != pytest.approx(total(sections), rel=1e-3)
