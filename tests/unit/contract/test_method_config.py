"""Rules between the keys of the learning method."""

from __future__ import annotations

from typing import Any

import pytest
from hintloop_contract.config.method import AdvantageSection
from hintloop_contract.config.schema import Config, TrainingSection
from pydantic import ValidationError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_correction": "mask", "tis_cap": None}, "needs tis_cap"),
        ({"is_correction": "mask", "tis_cap": 2.0, "tis_floor": 2.0}, "no token could count"),
        ({"is_correction": "truncate", "tis_floor": 0.1}, "set mask, or remove tis_floor"),
    ],
)
def test_bounds_of_importance_weights_have_to_act(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingSection(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"estimator": "grpo", "group_normalisation": True}, "only answer to a prompt is its own mean"),
        ({"estimator": "grpo", "group_normalisation": True, "group_size": 1}, "refused at group_size 1"),
        ({"estimator": "combine", "w_rl": 0.0, "w_opd": 0.0}, "every advantage would be 0"),
        ({"estimator": "grpo", "w_rl": 0.5}, 'set estimator = "combine"'),
    ],
)
def test_an_advantage_that_would_be_nothing_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AdvantageSection(**fields)


def test_groups_of_several_answers_are_accepted() -> None:
    section = AdvantageSection(estimator="grpo", group_normalisation=True, group_size=4)
    assert (section.group_normalisation, section.group_size) == (True, 4)


def test_a_mask_takes_both_bounds() -> None:
    section = TrainingSection(is_correction="mask", tis_cap=2.0, tis_floor=0.5)
    assert (section.tis_cap, section.tis_floor) == (2.0, 0.5)


def test_the_defaults_correct_by_truncation_and_need_no_reference() -> None:
    training = Config().training
    assert (training.is_correction, training.tis_cap, training.kl_coef, training.entropy_coef) == (
        "truncate",
        2.0,
        0,
        0,
    )
