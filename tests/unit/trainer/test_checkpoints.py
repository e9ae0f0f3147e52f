"""Checkpoints on one rank: what is in them, when they count, and what a failure leaves."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hintloop_contract.messages import Sample
from hintloop_trainer import checkpoints, durable, generators, starts
from hintloop_trainer.checkpoints import CheckpointStore, TrainerState
from hintloop_trainer.errors import CheckpointError
from hintloop_trainer.learner import Learner
from hintloop_trainer.lineage import Lineage
from hintloop_trainer.megatron.parallel import Layout
from hintloop_trainer.save_part import continued
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from transformers import AutoModelForCausalLM

from .conftest import build_learner, make_sample

PATIENCE_S = 60.0


@pytest.fixture
def learner(student: Callable[..., Path], layout: Layout) -> Learner:
    training = {"train_batch_size": 2, "learning_rate": 1e-3}
    return build_learner(student(), layout, rollout={"rollout_batch_size": 2}, training=training)


def make_step(learner: Learner, *turns: int) -> None:
    samples: list[Sample] = [make_sample(turn) for turn in turns]
    learner.begin([[msgspec.msgpack.encode(sample) for sample in samples]])
    learner.step(0)


def make_state(step: int) -> TrainerState:
    return TrainerState(
        step=step,
        run="run",
        lineage=Lineage(),
        trained_turn_ids=["turn-0000"],
        num_trained=2,
        model_path="",
        dtype="float32",
    )


def values(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in learner.model.named_parameters()}


def assert_equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=0, atol=0)


def finished(store: CheckpointStore) -> Path:
    deadline = time.monotonic() + PATIENCE_S
    while (path := store.finish()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path


def test_what_is_trained_while_the_files_are_written_is_not_in_them(learner: Learner, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    store = CheckpointStore(root, learner, 2)
    make_step(learner, 0, 1)
    before = values(learner)
    state = make_state(1)
    store.begin(state, None)
    state.lineage.release(9, 9)
    assert checkpoints.complete(root) == []
    make_step(learner, 2, 3)
    after = values(learner)
    path = finished(store)
    assert [directory.name for directory in root.iterdir() if directory.name.startswith((".step", "step"))] == [
        path.name
    ]
    assert checkpoints.read_state(path).lineage.versions == []

    store.load(path)
    assert_equal(values(learner), before)
    # The optimizer's state came with the weights: the same step leads to the same place.
    make_step(learner, 2, 3)
    assert_equal(values(learner), after)


def test_a_checkpoint_opens_in_transformers_without_a_second_export(learner: Learner, tmp_path: Path) -> None:
    make_step(learner, 0, 1)
    version = tmp_path / "weights" / "7"
    version.parent.mkdir()
    learner.export(version)
    (version / "hintloop_release.json").write_text("{}")
    store = CheckpointStore(tmp_path / "checkpoints", learner, 2)
    store.begin(make_state(1), version)
    exported = finished(store) / "hf"
    assert (exported / "model.safetensors").stat().st_ino == (version / "model.safetensors").stat().st_ino
    assert not (exported / "hintloop_release.json").exists()
    shutil.rmtree(version)
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    name = "model.layers.1.mlp.down_proj.weight"
    theirs = dict(model.named_parameters())[name]
    ours = dict(learner.model.named_parameters())["decoder.layers.1.mlp.linear_fc2.weight"]
    torch.testing.assert_close(theirs.data, ours.data, rtol=0, atol=0)


def test_files_are_copied_where_volumes_cannot_share_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").write_bytes(b"weights")

    def elsewhere(*paths: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", elsewhere)
    durable.share_files(source, tmp_path / "target")
    assert (tmp_path / "target" / "model.safetensors").read_bytes() == b"weights"


def draw() -> list[Any]:
    with get_cuda_rng_tracker().fork():
        tracked = torch.rand(3).tolist()
    return [random.random(), np.random.random(), torch.rand(3).tolist(), tracked]


def test_generators_go_on_where_they_were(learner: Learner, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", learner, 2)
    make_step(learner, 0, 1)
    draw()
    store.begin(make_state(1), None)
    path = finished(store)
    wanted = [draw(), draw()]
    draw()
    store.load(path)
    assert [draw(), draw()] == wanted


def test_under_another_layout_generators_begin_anew(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", learner, 2)
    make_step(learner, 0, 1)
    store.begin(make_state(5), None)
    path = finished(store)
    monkeypatch.setattr(generators, "sizes", lambda layout: [2, 2, 1, 1, 1])
    store.load(path)
    found = draw()
    generators.begin_anew(learner.config.training.seed + 5)
    assert found == draw()


def test_old_checkpoints_are_deleted(learner: Learner, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", learner, 2)
    for step in (1, 2, 3):
        store.begin(make_state(step), None)
        finished(store)
    names = [path.name for path in checkpoints.complete(tmp_path / "checkpoints")]
    assert names == ["step-000000002", "step-000000003"]


def failing(store: CheckpointStore, step: int) -> str:
    """What is said of a checkpoint that cannot be written; nothing may be left of it."""
    with pytest.raises(CheckpointError) as caught:
        store.begin(make_state(step), None)
        finished(store)
    return str(caught.value)


def test_a_volume_without_room_is_told_before_anything_is_written(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "checkpoints"
    store = CheckpointStore(root, learner, 2)
    store.begin(make_state(1), None)
    path = finished(store)
    monkeypatch.setattr(durable, "free_bytes", lambda directory: 1000)
    text = failing(store, 2)
    num_bytes = 3 * sum(value.nbytes for value in values(learner).values())
    assert f"no checkpoint of step 2 in {root}" in text
    assert "It takes " in text and "1000 were free" in text
    told = int(text.split("It takes ")[1].split(" ")[0])
    assert 0.3 * num_bytes <= told <= 1.1 * num_bytes
    assert checkpoints.complete(root) == [path]


@pytest.mark.parametrize("how", ["full", "killed"])
def test_a_writer_that_fails_leaves_the_checkpoint_before(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    root = tmp_path / "checkpoints"
    store = CheckpointStore(root, learner, 2)
    store.begin(make_state(1), None)
    path = finished(store)
    fsync, trainer = os.fsync, os.getpid()

    def fail(descriptor: int) -> None:
        # In the forked process alone, in the middle of its files.
        if os.getpid() == trainer:
            fsync(descriptor)
        elif how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        text = failing(store, 2)
    assert {"full": "No space left on device", "killed": "was killed"}[how] in text
    assert [left.name for left in root.iterdir()] == [path.name]
    # And the next try is as good as any.
    store.begin(make_state(2), None)
    assert finished(store) == checkpoints.step_directory(root, 2)


class Trap:
    """Ends the process that collects it."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_writer_collects_nothing_that_others_left(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What gRPC's threads had in their hands is poison in a process without these threads. Megatron sees to it."""
    store = CheckpointStore(tmp_path / "checkpoints", learner, 2)
    fsync, trainer = os.fsync, os.getpid()

    def littering(descriptor: int) -> None:
        if os.getpid() != trainer:
            Trap()
            assert len([[] for _ in range(100_000)]) == 100_000
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", littering)
        store.begin(make_state(1), None)
        assert finished(store).is_dir()


def test_files_cut_off_are_refused_with_the_way_out(learner: Learner, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", learner, 2)
    make_step(learner, 0, 1)
    store.begin(make_state(1), None)
    path = finished(store)
    data = next(path.glob("*.distcp"))
    os.truncate(data, data.stat().st_size // 2)
    with pytest.raises(CheckpointError, match=r"step-000000001 cannot be loaded: .*move it away"):
        store.load(path)


def test_a_killed_trainer_leaves_nothing_that_counts(tmp_path: Path) -> None:
    left = tmp_path / ".step-000000004.1234abcd.partial"
    left.mkdir()
    (left / "state.json").write_text("{}")
    assert checkpoints.complete(tmp_path) == []
    checkpoints.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_one_trainer_a_directory(tmp_path: Path) -> None:
    ready, told = os.pipe()
    holder = os.fork()
    if holder == 0:
        with durable.alone_in(tmp_path):
            os.write(told, b"held")
            signal.pause()
    try:
        assert os.read(ready, 4) == b"held"
        with pytest.raises(CheckpointError, match=rf"in use by another trainer \(host .*, process {holder}\)"):
            with durable.alone_in(tmp_path):
                pass
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    with durable.alone_in(tmp_path):
        pass


def test_versions_of_the_same_first_weights_are_ancestors(tmp_path: Path) -> None:
    first, second, third = Lineage(), Lineage(), Lineage()
    starts.note(tmp_path, "a", 1, 0, first)
    starts.note(tmp_path, "a", 4, 0, second)
    starts.note(tmp_path, "b", 6, 3, third)
    assert [released.version for released in second.versions] == [1]
    assert third.versions == []
    assert starts.read(tmp_path) == starts.Start("b", [6])


def test_a_history_stands_for_turns_and_their_order() -> None:
    whole = continued("", ["a", "b", "c"])
    assert continued(continued("", ["a"]), ["b", "c"]) == whole
    assert (
        len({whole, continued("", ["a", "c", "b"]), continued("", ["a", "b"]), continued("", ["a", "b", "b", "c"])})
        == 4
    )


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize(("before", "after"), [("initial", "ema"), ("ema", "initial"), ("ema", "current")])
def test_another_teacher_may_be_configured_at_a_restart(
    student: Callable[..., Path], layout: Layout, tmp_path: Path, before: str, after: str, lora: bool
) -> None:
    directory = student()

    def make(weights: str) -> Learner:
        prm = {
            "teacher_source": "trainer",
            "teacher_weights": weights,
            **({"ema_decay": 0.5} if weights == "ema" else {}),
        }
        training = {"train_batch_size": 2, "learning_rate": 1e-2}
        sections = {"rollout": {"rollout_batch_size": 2}, "prm": prm, "lora": {"enabled": lora, "rank": 4}}
        return build_learner(directory, layout, training=training, **sections)

    first, second = make(before), make(after)
    make_step(first, 0, 1)
    store = CheckpointStore(tmp_path / "checkpoints", first, 2)
    store.begin(make_state(1), None)
    CheckpointStore(tmp_path / "checkpoints", second, 2).load(finished(store))
    assert_equal(values(first), values(second))
    if after == "ema":
        # Nothing was averaged before: it begins at the weights that are gone on from.
        teacher: Any = second.own_teacher
        found = teacher.changing()
        assert found and all(bool(tensor.isfinite().all()) for tensor in found)
        with teacher.in_force() as network:
            now = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
        assert_equal(values(second), now)
