"""Adapters under data, tensor and pipeline parallel against one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hintloop_trainer.megatron.parallel import free_port

from .conftest import students
from .test_layouts import tensors

SCRIPT = Path(__file__).with_name("lora_layouts.py")


def launch(job: Path, world: int) -> dict[str, Any]:
    """Results by layout, as ``tensor x pipeline``; ``on`` went on from the checkpoint of the last."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={world}"]
    command += ["--master_addr=127.0.0.1", f"--master_port={free_port()}", str(SCRIPT), str(job)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
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


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name in ("losses", "grad_norms", "scores"):
        assert other[name] == pytest.approx(one[name], rel=1e-5, abs=1e-5), name
    for kind in ("merged", "adapter"):
        expected, found = tensors(one[kind]), tensors(other[kind])
        assert expected.keys() == found.keys()
        close = [(expected[name] - found[name]).abs() < 1e-5 for name in expected]
        # AdamW's first steps move a factor by the learning rate, whatever rounding does to tiny gradients.
        share = sum(int(item.sum()) for item in close) / sum(item.numel() for item in close)
        assert share > 0.999, (kind, share)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(write_job(tmp_path_factory.mktemp("lora") / "alone"), 1)


def test_every_layout_trains_the_same_adapters(alone: dict[str, Any], tmp_path: Path) -> None:
    found = launch(write_job(tmp_path / "two"), 2)
    assert sorted(found) == ["1x1", "1x2", "2x1", "on"]
    for layout in ("1x1", "2x1", "1x2"):
        check_same(alone["1x1"], found[layout])
    # Data parallel, from a pipeline's checkpoint, as one process from its own.
    check_same(alone["on"], found["on"])


@pytest.mark.slow
def test_tensor_and_pipeline_parallel_train_the_same_adapters(alone: dict[str, Any], tmp_path: Path) -> None:
    found = launch(write_job(tmp_path / "four"), 4)
    check_same(alone["1x1"], found["2x2"])
    check_same(alone["on"], found["on"])
