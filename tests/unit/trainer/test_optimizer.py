"""What the optimizer holds, and in which precision."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hintloop_trainer.checkpoints import CheckpointStore, TrainerState
from hintloop_trainer.learner import Learner
from hintloop_trainer.lineage import Lineage
from hintloop_trainer.megatron import optimizer
from hintloop_trainer.megatron.parallel import Layout
from hintloop_trainer.snapshot import adopt

from .test_learner import SAMPLES, encoded, make_learner

DISTRIBUTED = {"use_distributed_optimizer": True}


def steps(learner: Learner, count: int) -> list[float]:
    losses = []
    for _ in range(count):
        learner.begin([encoded(SAMPLES)])
        losses.append(learner.step(0).loss)
    return losses


def gradient(learner: Learner) -> torch.Tensor:
    return torch.cat([parameter.main_grad.flatten() for parameter in learner.model.parameters()])


def main_weights(learner: Learner) -> torch.Tensor:
    """The optimizer's own weights: the float32 ones beside bfloat16's."""
    mains = [getattr(parameter, "main_param", None) for parameter in learner.model.parameters()]
    own = [
        parameter if main is None else main for parameter, main in zip(learner.model.parameters(), mains, strict=True)
    ]
    return torch.cat([weight.detach().flatten() for weight in own])


@pytest.mark.parametrize("training", [{}, DISTRIBUTED], ids=["plain", "distributed"])
def test_a_step_in_bfloat16_is_float32_s_within_its_precision(
    student: Callable[..., Path], layout: Layout, training: dict[str, Any]
) -> None:
    directory = student()
    exact = make_learner(directory, layout, learning_rate=1e-4)
    rough = make_learner(directory, layout, learning_rate=1e-4, dtype="bfloat16", **training)
    (expected,), (found,) = steps(exact, 1), steps(rough, 1)
    # bfloat16 holds 8 bits: each of the four layers' roundings is up to 0.4 % of a value.
    assert found == pytest.approx(expected, rel=0.05, abs=0.02)
    one, other = gradient(exact), gradient(rough)
    assert other.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(one, other, dim=0) > 0.99
    assert float(other.norm()) == pytest.approx(float(one.norm()), rel=0.05)
    # Float32 weights move by the learning rate, however little of that bfloat16 can hold.
    own = main_weights(rough)
    assert own.dtype == torch.float32
    moved = (own - torch.cat([p.detach().flatten().float() for p in rough.model.parameters()])).abs()
    assert 0.0 < float(moved.max()) < 0.01


def test_the_distributed_optimizer_makes_the_same_steps(student: Callable[..., Path], layout: Layout) -> None:
    directory = student()
    plain = make_learner(directory, layout, learning_rate=1e-3)
    divided = make_learner(directory, layout, learning_rate=1e-3, **DISTRIBUTED)
    assert steps(divided, 3) == pytest.approx(steps(plain, 3), rel=1e-6)
    for one, other in zip(plain.model.parameters(), divided.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "training",
    [
        {"recompute_granularity": "selective"},
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
    ],
    ids=["selective", "uniform", "block"],
)
def test_recomputation_keeps_less_and_gives_the_same_gradient(
    student: Callable[..., Path], layout: Layout, training: dict[str, Any]
) -> None:
    directory = student()
    kept, recomputed = make_learner(directory, layout), make_learner(directory, layout, **training)
    sizes = [saved_bytes(learner) for learner in (kept, recomputed)]
    assert sizes[1] < sizes[0]
    assert torch.equal(gradient(kept), gradient(recomputed))


def saved_bytes(learner: Learner) -> int:
    """Bytes that a step's first forward pass keeps for its backward pass, weights aside."""
    weights = {parameter.data_ptr() for parameter in learner.model.parameters()}
    seen: dict[int, int] = {}
    backward: list[bool] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if not backward and tensor.data_ptr() not in weights:
            seen[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        backward.append(True)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        steps(learner, 1)
    return sum(seen.values())


def hand_over(learner: Learner, fresh: Learner, folder: Path) -> None:
    """Save one after two steps, and have the other go on from there."""
    store = CheckpointStore(folder, learner, 1)
    state = TrainerState(
        step=2, run="r", lineage=Lineage(), trained_turn_ids=[], num_trained=8, model_path="m", dtype="float32"
    )
    store.begin(state, None)
    while (path := store.finish()) is None:
        time.sleep(0.05)
    CheckpointStore(folder, fresh, 1).load(path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("training", [{}, DISTRIBUTED], ids=["plain", "distributed"])
def test_a_rising_rate_goes_on_after_a_resume_and_begins_anew_without_moments(
    student: Callable[..., Path], layout: Layout, tmp_path: Path, training: dict[str, Any], dtype: str
) -> None:
    settings = {"learning_rate": 6e-3, "lr_warmup_steps": 5, "dtype": dtype, **training}
    directory = student()
    learner, fresh = make_learner(directory, layout, **settings), make_learner(directory, layout, **settings)
    assert rates(learner, 2) == pytest.approx([1e-3, 2e-3])
    hand_over(learner, fresh, tmp_path)
    assert rates(fresh, 2) == pytest.approx([3e-3, 4e-3])
    adopt(fresh, directory)
    assert rates(fresh, 2) == pytest.approx([1e-3, 2e-3])


def rates(learner: Learner, count: int) -> list[float]:
    """The learning rates of so many steps."""
    found = []
    for _ in range(count):
        learner.begin([encoded(SAMPLES)])
        found.append(learner.step(0).effective["learning_rate"])
    return found


def test_an_optimizer_that_counts_in_its_groups_is_read_where_it_has_weights() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    inner = torch.optim.SGD([{"params": [weight], "step": 4}])
    inner.param_groups.insert(0, {"params": [], "step": 1})
    assert optimizer.num_made(SimpleNamespace(optimizer=inner)) == 4


def test_what_stands_behind_a_padded_bucket_is_saved_as_it_is(
    student: Callable[..., Path], layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients that are sent on their way early lie in several buckets, each with padding behind it."""
    small = partial(optimizer.DistributedDataParallelConfig, bucket_size=1000)
    monkeypatch.setattr(optimizer, "DistributedDataParallelConfig", small)
    directory, training = student(), {"learning_rate": 1e-3, **DISTRIBUTED, "overlap_grad_reduce": True}
    learner = make_learner(directory, layout, **training)
    assert len(learner.replicated.buffers[0].buckets) > 3
    steps(learner, 2)
    fresh = make_learner(directory, layout, **training)
    hand_over(learner, fresh, tmp_path / "checkpoints")
    assert torch.equal(main_weights(fresh), main_weights(learner))
    assert steps(fresh, 2) == steps(learner, 2)
    assert torch.equal(main_weights(fresh), main_weights(learner))
