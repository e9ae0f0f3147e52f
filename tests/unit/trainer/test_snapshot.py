"""The learner back at the last release: the next step is the one that it would have made then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from hintloop_trainer.learner import Learner
from hintloop_trainer.megatron import parallel
from hintloop_trainer.snapshot import Snapshot, adopt

from .conftest import build_learner, make_sample


def learner_of(
    directory: Path, layout: parallel.Layout, tmp_path: Path, dtype: str = "float32", **sections: dict[str, object]
) -> Learner:
    training = {"train_batch_size": 2, "learning_rate": 1e-2, "checkpoint_dir": tmp_path / "checkpoints"}
    return build_learner(
        directory,
        layout,
        model={"dtype": dtype, "max_seq_len": 64},
        rollout={"rollout_batch_size": 2},
        training=training,
        **sections,
    )


def step(learner: Learner, turn: int) -> None:
    samples = [msgspec.msgpack.encode(make_sample(number)) for number in (turn, turn + 1)]
    learner.begin([samples])
    learner.step(0)


def state(learner: Learner) -> list[torch.Tensor]:
    found = [parameter.detach().float().clone() for parameter in learner.model.parameters()]
    if learner.own_teacher is not None:
        found += [value.float().clone() for value in learner.own_teacher.changing()]
    return found


def equal(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


EMA = {"prm": {"teacher_source": "trainer", "teacher_weights": "ema", "ema_decay": 0.5}}


@pytest.mark.parametrize("num_before", [0, 2])
@pytest.mark.parametrize(("dtype", "sections"), [("float32", {}), ("bfloat16", {}), ("float32", EMA)])
def test_the_next_step_is_the_one_it_would_have_made(
    student: Callable[..., Path],
    layout: parallel.Layout,
    tmp_path: Path,
    dtype: str,
    sections: dict[str, object],
    num_before: int,
) -> None:
    learner = learner_of(student("qwen3"), layout, tmp_path, dtype, **sections)
    for turn in range(num_before):
        step(learner, 2 * turn)
    snapshot = Snapshot(learner)
    snapshot.keep()
    at_release, number = state(learner), float(torch.rand(()))
    step(learner, 10)
    straight = state(learner)
    assert not equal(at_release, straight)
    step(learner, 20)
    step(learner, 30)
    snapshot.go_back()
    assert equal(at_release, state(learner))
    assert float(torch.rand(())) == number
    step(learner, 10)
    assert equal(straight, state(learner))
    # What is kept stands: going back a second time is going back to the same.
    snapshot.go_back()
    assert equal(at_release, state(learner))


@pytest.mark.parametrize("num_before", [0, 2])
def test_adopted_weights_train_on_as_if_from_the_start(
    student: Callable[..., Path], layout: parallel.Layout, tmp_path: Path, num_before: int
) -> None:
    directory = student("qwen3")
    fresh = learner_of(directory, layout, tmp_path)
    step(fresh, 10)
    step(fresh, 20)
    learner = learner_of(directory, layout, tmp_path)
    for turn in range(num_before):
        step(learner, 2 * turn)
    adopt(learner, directory)
    step(learner, 10)
    step(learner, 20)
    assert equal(state(fresh), state(learner))
