"""What becomes of a run whose checkpoints or weights cannot be written, or are long being written."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.messages import Sample
from hintloop_contract.streams import SAMPLES
from hintloop_trainer import checkpoints, durable, save_part, waiting
from hintloop_trainer.errors import CheckpointError
from hintloop_trainer.learner import Learner
from hintloop_trainer.megatron import export
from safetensors import SafetensorError
from structlog.testing import capture_logs

from .conftest import Bench, run

MakeSample = Callable[..., Sample]


def test_a_checkpoint_that_cannot_be_written_is_tried_again_and_training_goes_on(
    bench: Bench, make_sample: MakeSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.feed([make_sample(turn) for turn in range(6)])
    room, tries = iter([0, 0, 0, 0]), []

    def free_bytes(directory: Path) -> int:
        tries.append(directory)
        return next(room, 2**40)

    monkeypatch.setattr(durable, "free_bytes", free_bytes)
    monkeypatch.setattr(save_part, "RETRY_S", 0.0)
    with capture_logs() as logs:
        progress, _ = bench.train(bench.config(training={"max_steps": 3, "save_interval": 1}))
    failed = [line["detail"] for line in logs if line["event"].startswith("checkpoint failed")]
    # Each try looks twice: before it writes, and for what it says.
    assert (progress.step, len(failed), len(tries)) == (3, 2, 5)
    assert str(bench.folder / "checkpoints") in failed[0]
    assert re.search(r"It takes \d{6,} bytes; 0 were free", failed[0])
    assert bench.trained_ids() == [f"turn-{turn:04d}" for turn in range(6)]
    assert run(bench, bench.broker.counts(SAMPLES)).length == 0


def test_weights_that_cannot_be_written_are_tried_again_and_training_goes_on(
    bench: Bench, make_sample: MakeSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    save, tries = export.save_file, []

    def save_file(tensors: Any, file: str, **more: Any) -> None:
        tries.append(file)
        save(tensors, file, **more)
        if len(tries) in (2, 3):
            # Found out at the end, as a volume that fills up is.
            raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(export, "save_file", save_file)
    monkeypatch.setattr(waiting, "FIRST_RETRY_S", 0.0)
    with capture_logs() as logs:
        progress, _ = bench.train(bench.config())
    failed = [line["detail"] for line in logs if line["event"] == "exporting weights failed, trying again"]
    assert (progress.step, progress.num_trained, len(failed)) == (2, 4, 2)
    assert "No space left on device" in failed[0]
    assert [released.version for released in progress.lineage.versions] == [1, 2, 3]
    assert list((bench.folder / "weights").glob(".*")) == []
    assert bench.trained_ids() == [f"turn-{turn:04d}" for turn in range(4)]


def test_an_end_without_a_checkpoint_is_loud_and_its_samples_come_again(
    bench: Bench, make_sample: MakeSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.feed([make_sample(turn) for turn in range(2)])
    with monkeypatch.context() as patch:
        patch.setattr(durable, "free_bytes", lambda directory: 0)
        with pytest.raises(CheckpointError, match="no checkpoint of step 1"):
            bench.train(bench.config(training={"max_steps": 1}))
    status = run(bench, bench.broker.get_status("trainer"))
    assert (status["phase"], "no checkpoint of step 1" in status["detail"]) == ("failed", True)
    assert run(bench, bench.broker.counts(SAMPLES)).length == 2
    # No one renews what the failed run held; the next one begins with the same weights.
    progress, _ = bench.train(bench.config(training={"max_steps": 1}, redis={"claim_idle_ms": 1000}))
    assert (progress.step, progress.num_trained) == (1, 2)
    assert run(bench, bench.broker.funnel()).drops == {}


@pytest.mark.parametrize("async_save", [True, False])
def test_training_goes_on_while_a_checkpoint_is_written_if_so_configured(
    bench: Bench, make_sample: MakeSample, monkeypatch: pytest.MonkeyPatch, async_save: bool
) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    fsync, trainer, events = os.fsync, os.getpid(), []
    step, finish = Learner.step, checkpoints.CheckpointStore.finish
    trained = bench.folder / "both steps are made"

    def slowly(descriptor: int) -> None:
        """Before the files are whole there is time for the next step, where one is made meanwhile."""
        ends = time.monotonic() + (60.0 if async_save else 0.5)
        while os.getpid() != trainer and not trained.exists() and time.monotonic() < ends:
            time.sleep(0.05)
        fsync(descriptor)

    def stepped(learner: Learner, index: int) -> Any:
        events.append("step")
        result = step(learner, index)
        if events.count("step") == 2:
            trained.touch()
        return result

    def finished(store: checkpoints.CheckpointStore) -> Any:
        path = finish(store)
        if path is not None:
            events.append(path.name)
        return path

    monkeypatch.setattr(os, "fsync", slowly)
    monkeypatch.setattr(Learner, "step", stepped)
    monkeypatch.setattr(checkpoints.CheckpointStore, "finish", finished)
    bench.train(bench.config(training={"max_steps": 2, "save_interval": 1, "async_save": async_save}))
    first, second = "step-000000001", "step-000000002"
    assert events == (["step", "step", first, second] if async_save else ["step", first, "step", second])
