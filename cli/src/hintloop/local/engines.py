"""Engines and models on this machine: where their scripts are, how they are installed and started."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hintloop.errors import CommandError, InstallError
from hintloop.local.http_checks import http_ready
from hintloop.local.processes import ProcessSpec, Supervisor

EngineName = Literal["vllm", "sglang"]
Role = Literal["policy", "prm"]

#: Candidates per token that the start scripts allow without being asked.
DEFAULT_MAX_LOGPROBS = 64
START_TIMEOUT_S = 420.0


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """One engine server. ``max_model_len`` in tokens; ``max_logprobs`` candidates per token; ``lora_rank`` is 0 where
    it takes no adapters."""

    engine: EngineName
    role: Role
    model_dir: Path
    port: int
    served_model_name: str
    dtype: str
    max_model_len: int
    max_logprobs: int = DEFAULT_MAX_LOGPROBS
    lora_rank: int = 0


def find_scripts() -> Path:
    """The `engines/` folder: `HINTLOOP_ENGINES_DIR`, else beside this package's clone, else here.

    Raises:
        CommandError: it is nowhere.
    """
    configured = os.environ.get("HINTLOOP_ENGINES_DIR")
    clone = Path(__file__).resolve().parents[4] / "engines"
    candidates = [Path(configured)] if configured else [clone, Path.cwd() / "engines"]
    for candidate in candidates:
        if (candidate / "vllm" / "start.sh").is_file():
            return candidate
    tried = ", ".join(str(candidate) for candidate in candidates)
    raise CommandError(f"no engines folder (tried {tried}); run inside a clone or set HINTLOOP_ENGINES_DIR")


async def install(supervisor: Supervisor, scripts: Path, engine: EngineName) -> Path:
    """Install an engine unless it is there; its virtual environment."""
    script = scripts / engine / "install.sh"
    if not script.is_file():
        raise CommandError(f"engine {engine!r} has no {script}; choose one of vllm, sglang")
    line = await supervisor.run_tool(f"install-{engine}", ["bash", str(script)])
    return _directory(line, script)


async def prepare_model(supervisor: Supervisor, scripts: Path) -> Path:
    """Prepare the default model unless it is there; its directory."""
    script = scripts / "models" / "prepare.sh"
    line = await supervisor.run_tool("prepare-model", ["bash", str(script), sys.executable])
    return _directory(line, script)


def _directory(line: str, script: Path) -> Path:
    path = Path(line)
    if not path.is_dir():
        raise InstallError(f"{script} should end its output with a directory; it printed {line!r}")
    return path


def spec(scripts: Path, options: EngineOptions) -> ProcessSpec:
    """How an engine server runs."""
    command = ["bash", str(scripts / options.engine / "start.sh")]
    command += ["--model", str(options.model_dir), "--port", str(options.port), "--role", options.role]
    command += ["--served-model-name", options.served_model_name, "--dtype", options.dtype]
    command += ["--max-model-len", str(options.max_model_len)]
    if options.max_logprobs > DEFAULT_MAX_LOGPROBS and options.engine == "vllm":
        command += ["--", "--max-logprobs", str(options.max_logprobs)]
    return ProcessSpec(
        name=f"{options.role}-engine",
        command=command,
        ready=http_ready(f"http://127.0.0.1:{options.port}/health"),
        ready_timeout_s=START_TIMEOUT_S,
        stop_grace_s=10.0,
        env={"HINTLOOP_LORA_RANK": str(options.lora_rank)} if options.lora_rank else {},
    )


def weights_to_start_from(released: Path, model_dir: Path) -> Path:
    """The released weights; the model's own where none are, or an adapter is: the trainer brings that one later."""
    return released.resolve() if (released / "config.json").is_file() else model_dir
