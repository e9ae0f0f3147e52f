"""Adapters under data, tensor and pipeline parallel against one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hintloop_contract.errors import ConfigError
from hintloop_contract.messages import Sample
from hintloop_trainer.megatron import parallel
from safetensors.torch import load_file

from . import lora_layouts
from .conftest import Bench, students

SCRIPT = Path(__file__).with_name("lora_layouts.py")


def launch(job: Path, world: int) -> dict[str, Any]:
    """Results by layout; ``on`` is the first one, going on from the checkpoint of the last."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={world}"]
    command += ["--master_addr=127.0.0.1", f"--master_port={parallel.free_port()}", str(SCRIPT), str(job)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0 and lines, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(lines[0].removeprefix("RESULT "))
    return found


def write_job(folder: Path) -> Path:
    folder.mkdir()
    students.tiny_model("qwen3", tied=True).save_pretrained(folder / "student")
    samples = [students.make_sample(turn, num_prompt=3 + turn % 3, num_response=3 + 2 * turn) for turn in range(8)]
    path = folder / "samples.msgpack"
    path.write_bytes(msgspec.msgpack.encode(samples))
    return path


def tensors(folder: str) -> dict[str, torch.Tensor]:
    return {name: tensor for file in Path(folder).glob("*.safetensors") for name, tensor in load_file(file).items()}


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name in ("losses", "grad_norms", "scores"):
        assert other[name] == pytest.approx(one[name], rel=1e-5, abs=1e-5), name
    for kind in ("merged", "adapter"):
        expected, found = tensors(one[kind]), tensors(other[kind])
        assert expected.keys() == found.keys()
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], rtol=0.0, atol=1e-5)


@pytest.fixture(scope="module")
def alone(layout: parallel.Layout, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What this one process makes of the same, and how it goes on."""
    job = write_job(tmp_path_factory.mktemp("lora") / "alone")
    samples, config = lora_layouts.read_samples(job), lora_layouts.settings(job.parent, 1, 1, {})
    first, saved = lora_layouts.run(job.parent, samples, "first", config, None)
    again, _ = lora_layouts.run(job.parent, samples, "again", config, saved)
    return {"first": first, "on": again}


def test_every_layout_trains_the_same_adapters(alone: dict[str, Any], tmp_path: Path) -> None:
    found = launch(write_job(tmp_path / "two"), 2)
    for layout in ("data", "optimizer", "tensor", "sequence", "pipeline"):
        check_same(alone["first"], found[layout])
    # Data parallel, from a pipeline's checkpoint, as one process from its own.
    check_same(alone["on"], found["on"])


@pytest.mark.slow
def test_tensor_and_pipeline_parallel_train_the_same_adapters(alone: dict[str, Any], tmp_path: Path) -> None:
    found = launch(write_job(tmp_path / "four"), 4)
    check_same(alone["first"], found["both"])
    # Tensor and pipeline parallel as well.
    check_same(alone["on"], found["on"])


def test_versions_are_adapters_and_a_restart_goes_on_with_them(
    bench: Bench, make_sample: Callable[..., Sample]
) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    config = bench.config(lora={"enabled": True, "rank": 4})
    progress, learner = bench.train(config)
    assert progress.step == 2

    def adapter(version: int) -> dict[str, torch.Tensor]:
        folder = bench.folder / "weights" / str(version)
        assert not (folder / "model.safetensors").exists()
        return load_file(folder / "adapter_model.safetensors")

    first, last = adapter(1), adapter(3)
    assert not any(tensor.any() for name, tensor in first.items() if "lora_B" in name)
    assert all(tensor.any() for name, tensor in last.items() if "lora_B" in name)
    assert (bench.folder / "weights" / "current").resolve().name == "3"

    trained = learner.score(lora_layouts.PROBE)
    progress, learner = bench.train(bench.config(lora={"enabled": True, "rank": 4}), stop=stopped())
    assert progress.step == 2
    assert learner.score(lora_layouts.PROBE) == trained
    again = adapter(progress.lineage.current or 0)
    assert all(torch.equal(again[name], last[name]) for name in last)
    with pytest.raises(ConfigError, match="asks for rank 8.*was made with rank 4"):
        bench.train(bench.config(lora={"enabled": True, "rank": 8}), stop=stopped())


def stopped() -> threading.Event:
    event = threading.Event()
    event.set()
    return event
