"""How engines are started: what the local stack asks of the start scripts, and what these make of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hintloop.local import engines
from hintloop.local.engines import EngineOptions

Start = Callable[..., subprocess.CompletedProcess[str]]

SCRIPTS = Path(__file__).parents[3] / "engines"


def options(engine: engines.EngineName, lora_rank: int) -> EngineOptions:
    return EngineOptions(
        engine=engine,
        role="policy",
        model_dir=Path("/model"),
        port=8000,
        served_model_name="policy",
        dtype="float32",
        max_model_len=64,
        lora_rank=lora_rank,
    )


def test_engines_take_adapters_only_where_versions_are_adapters() -> None:
    assert engines.spec(SCRIPTS, options("vllm", 0)).env == {}
    assert engines.spec(SCRIPTS, options("vllm", 24)).env == {"HINTLOOP_LORA_RANK": "24"}


def test_an_engine_starts_from_released_weights_but_not_from_an_adapter(tmp_path: Path) -> None:
    model, current = tmp_path / "model", tmp_path / "weights" / "current"
    assert engines.weights_to_start_from(current, model) == model
    version = tmp_path / "weights" / "7"
    version.mkdir(parents=True)
    current.symlink_to(version.name)
    (version / "adapter_config.json").write_text("{}")
    assert engines.weights_to_start_from(current, model) == model
    (version / "config.json").write_text("{}")
    assert engines.weights_to_start_from(current, model) == version


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Run a start script as on a GPU, where it becomes whichever `python3` is found; what that was given."""
    for name, text in {
        "python3": 'echo "$@ runtime=$VLLM_ALLOW_RUNTIME_LORA_UPDATING"',
        "nvidia-smi": "exit 0",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "config.json").write_text("{}")

    def run(engine: str, role: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [str(SCRIPTS / engine / "start.sh"), "--model", str(tmp_path), "--port", "1"]
        command += ["--served-model-name", "policy", "--role", role]
        path = f"{tmp_path}:{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": str(tmp_path), **variables}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return run


def test_vllm_has_buffers_of_a_size_that_it_knows(start: Start) -> None:
    said = start("vllm", "policy", HINTLOOP_LORA_RANK="17", HINTLOOP_LORA_SLOTS="2").stdout
    assert "--enable-lora --max-lora-rank 32 --max-loras 2" in said and "runtime=1" in said
    assert "lm_head" not in said
    for words in (start("vllm", "policy").stdout, start("vllm", "prm", HINTLOOP_LORA_RANK="8").stdout):
        assert "lora" not in words.replace("runtime=", "")
        assert '--weight-transfer-config {"backend": "hintloop"}' in words


def test_a_rank_that_no_engine_serves_is_refused(start: Start) -> None:
    done = start("vllm", "policy", HINTLOOP_LORA_RANK="600")
    assert done.returncode == 2 and "at most 512" in done.stderr


def test_sglang_is_told_rank_and_modules(start: Start) -> None:
    said = start("sglang", "policy", HINTLOOP_LORA_RANK="17").stdout
    assert "--enable-lora --max-lora-rank 17 --max-loras-per-batch 4 --lora-target-modules q_proj" in said
    assert "lora" not in start("sglang", "policy").stdout.replace("runtime=", "")
