from __future__ import annotations

import math

import pytest
import torch
from hintloop_trainer.losses.importance import Correction, correction_from, importance_weights

NOW = torch.tensor([-1.0, -1.0, -1.0, -1.0, -1.0])
ENGINE = torch.tensor([-1.5, -5.0, -0.5, -0.5, -0.01])
APPLIES = torch.tensor([True, True, True, False, True])


@pytest.mark.parametrize(
    ("correction", "weights", "bounded"),
    [
        (Correction("truncate", 2.0), [math.exp(0.5), 2.0, math.exp(-0.5), 1.0, math.exp(-0.99)], [1]),
        (Correction("mask", 2.0), [math.exp(0.5), 0.0, math.exp(-0.5), 1.0, math.exp(-0.99)], [1]),
        (Correction("mask", 2.0, 0.5), [math.exp(0.5), 0.0, math.exp(-0.5), 1.0, 0.0], [1, 4]),
        (Correction("off"), [1.0] * 5, []),
    ],
)
def test_weights_are_bounded_only_where_they_apply(
    correction: Correction, weights: list[float], bounded: list[int]
) -> None:
    found, outside = importance_weights(NOW, ENGINE, APPLIES, correction)
    assert found.tolist() == pytest.approx(weights)
    assert outside.nonzero().flatten().tolist() == bounded


def test_an_overflowing_weight_is_cut() -> None:
    now, engine, applies = torch.tensor([-1.0]), torch.tensor([-200.0]), torch.tensor([True])
    assert importance_weights(now, engine, applies, Correction("truncate", 2.0))[0].tolist() == [2.0]
    assert importance_weights(now, engine, applies, Correction("mask", 2.0))[0].tolist() == [0.0]


def test_no_cap_is_no_correction() -> None:
    assert correction_from("truncate", None, 0.0) == Correction("off")
    assert correction_from("off", 2.0, 0.0) == Correction("off")
    assert correction_from("mask", 3.0, 0.5) == Correction("mask", 3.0, 0.5)
