"""Data, tensor and pipeline parallel runs against the run of one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hintloop_contract.tensors import pack
from safetensors import safe_open

from .conftest import students

SCRIPT = Path(__file__).with_name("layouts.py")
K = 4


def launch(job: Path, world: int, tensor: int, pipeline: int, load: str = "-") -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [str(SCRIPT), str(job), str(tensor), str(pipeline), load]
    command = [sys.executable, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if world > 1:
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={world}", *arguments]
        command[3:3] = ["--master_addr=127.0.0.1", f"--master_port={port}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0 and lines, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(lines[0].removeprefix("RESULT "))
    return found


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student whose vocabulary no two ranks share evenly, and eight samples of different lengths."""
    folder = tmp_path_factory.mktemp("layouts")
    students.tiny_model("qwen3", tied=True).save_pretrained(folder / "student")
    rng = np.random.default_rng(0)
    samples = []
    for turn in range(8):
        length = 3 + 2 * turn
        candidates = np.stack([rng.permutation(students.VOCAB)[:K] for _ in range(length)])
        samples.append(
            students.make_sample(
                turn,
                num_prompt=3 + turn % 3,
                num_response=length,
                teacher_topk_ids=pack(candidates, "int32"),
                teacher_topk_logprobs=pack(np.full((length, K), -2.0), "float16"),
                teacher_tail_logprobs=pack(np.full(length, np.log(1 - K * np.exp(-2.0))), "float32"),
            )
        )
    path = folder / "samples.msgpack"
    path.write_bytes(msgspec.msgpack.encode(samples))
    return path


@pytest.fixture(scope="module")
def alone(job: Path) -> dict[str, Any]:
    return launch(job, 1, 1, 1)


def tensors(folder: str) -> dict[str, torch.Tensor]:
    found = {}
    for file in Path(folder).glob("*.safetensors"):
        with safe_open(file, "pt") as handle:
            found.update({name: handle.get_tensor(name) for name in handle.keys()})  # noqa: SIM118
    return found


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (one["tokens"], one["read"]) == (other["tokens"], other["read"])
    for name in ("losses", "grad_norms", "entropy", "ratio", "scores"):
        assert other[name] == pytest.approx(one[name], rel=2e-4, abs=2e-5), name
    for name in ("chosen", "taught_ids"):
        assert one[name] and other[name] == one[name], name
    for name in ("taught", "taught_tails"):
        for mine, theirs in zip(one[name], other[name], strict=True):
            assert theirs == pytest.approx(mine, rel=2e-4, abs=2e-5), name
    expected, found = tensors(one["out"]), tensors(other["out"])
    assert expected.keys() == found.keys()
    # AdamW's first steps move every weight by the learning rate, whatever rounding does to tiny gradients.
    close = [(expected[name] - found[name]).abs() < 1e-5 for name in expected]
    share = sum(int(item.sum()) for item in close) / sum(item.numel() for item in close)
    assert share > 0.999


@pytest.mark.parametrize(("world", "tensor", "pipeline"), [(2, 1, 1), (2, 2, 1), (2, 1, 2)])
def test_every_layout_makes_the_same_steps(
    job: Path, alone: dict[str, Any], world: int, tensor: int, pipeline: int
) -> None:
    check_same(alone, launch(job, world, tensor, pipeline))


@pytest.mark.slow
def test_topk_is_the_same_under_tensor_parallel(job: Path) -> None:
    check_same(launch(job, 1, 1, 1, "topk"), launch(job, 2, 2, 1, "topk"))


@pytest.mark.slow
def test_a_checkpoint_is_read_by_another_layout(job: Path, alone: dict[str, Any]) -> None:
    checkpoint = str(job.parent / "checkpoints" / "step-000000002")
    check_same(launch(job, 1, 1, 1, checkpoint), launch(job, 2, 2, 1, checkpoint))
