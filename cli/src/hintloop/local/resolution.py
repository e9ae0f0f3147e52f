"""What a local stack decides by itself: addresses, ports, directories, the model. What is configured stands.

The decisions are written to `<state-dir>/config.toml`, which every service of the stack reads as the last file.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from hintloop_contract.config import LoadedConfig, load_config

from hintloop.errors import CommandError
from hintloop.local import console, ports
from hintloop.local.engines import EngineName

LOOPBACK = ("127.0.0.1", "localhost")
#: Room in the engines' context for a hint behind the longest sample, tokens.
HINT_ROOM = 256

Values = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the user's configuration comes from."""

    files: Sequence[Path] = ()
    settings: Sequence[Path] = ()
    flags: Mapping[str, str] = field(default_factory=dict)

    def load(self, *more: Path) -> LoadedConfig:
        """Resolve, with ``more`` files last."""
        return load_config([*self.files, *more], settings=self.settings, flags=self.flags)

    def arguments(self, *more: Path) -> list[str]:
        """The same as a service's command line."""
        arguments: list[str] = []
        for file in [*self.files, *more]:
            arguments += ["--config", str(Path(file).resolve())]
        for file in self.settings:
            arguments += ["--settings", str(Path(file).resolve())]
        for path, value in self.flags.items():
            arguments += ["--set", f"{path}={value}"]
        return arguments


@dataclass(frozen=True, slots=True)
class Plan:
    """Which parts the stack runs itself. A part that is configured is attached to, not started."""

    redis: bool
    policy_engine: bool
    prm_engine: bool
    prm_engine_name: EngineName
    values: Values
    notes: list[str] = field(default_factory=list)
    """What a user should know of the decisions."""


def has_gpu() -> bool:
    """Whether the driver shows a GPU."""
    if shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False, timeout=30).returncode == 0


def plan(
    loaded: LoadedConfig, state_dir: Path, redis_url: str, prm_engine: EngineName, *, default_port: bool = False
) -> Plan:
    """Decide what is not configured. ``default_port``: the proxy listens on its default port when that is free.

    Raises:
        CommandError: a configured port is taken.
    """
    config, configured = loaded.config, loaded.origins
    values: Values = {}

    def decide(path: str, value: Any) -> None:
        section, _, key = path.partition(".")
        if path not in configured:
            values.setdefault(section, {})[key] = value

    redis = "redis.url" not in configured
    policy = "policy.engines" not in configured and config.rollout.sglang_host in LOOPBACK
    prm = "prm.prm_url" not in configured
    free = iter(ports.choose(5))
    listens = {"proxy.port": config.proxy.host, "prm.port": config.prm.host, "prm.grpc_port": config.prm.host}
    if policy:
        listens["rollout.sglang_port"] = "127.0.0.1"
    for path, host in listens.items():
        if path in configured:
            section, _, key = path.partition(".")
            ports.require_free(host, getattr(getattr(config, section), key), path)
        decide(path, next(free))
    notes: list[str] = []
    if default_port and "proxy.port" not in configured:
        port, note = ports.choose_near(config.proxy.host, config.proxy.port, "proxy.port")
        decide("proxy.port", port)
        notes += [note] if note else []
    if redis:
        decide("redis.url", redis_url)
    if prm:
        decide("prm.prm_url", f"http://127.0.0.1:{next(free)}")
        decide("prm.engine", prm_engine)
    decide("model.dtype", "bfloat16" if has_gpu() else "float32")
    decide("training.checkpoint_dir", str(state_dir / "checkpoints"))
    decide("publishing.weights_dir", str(state_dir / "weights"))
    decide("proxy.spool_dir", str(state_dir / "spool"))
    values["console"], note = console.values(loaded, str(state_dir))
    notes += [note] if note else []
    # Written in any case: with it and the address of Redis, `hintloop status` finds the deployment.
    values.setdefault("policy", {})["name"] = config.policy.name
    return Plan(redis, policy, prm, prm_engine, values, notes)


def with_model(values: Values, model_dir: Path) -> Values:
    """``values`` with the student's directory."""
    return {**values, "model": {**values.get("model", {}), "student_model_path": str(model_dir)}}


def write(path: Path, values: Values) -> None:
    """Write the decisions as TOML."""
    path.write_text("# Written by hintloop: what the local stack decided.\n" + tomli_w.dumps(values), encoding="utf-8")


def context_length(model_dir: Path, max_seq_len: int) -> int:
    """Context of the engines, tokens: the longest sample and a hint, within what the model allows.

    Raises:
        CommandError: the directory is no Hugging Face model.
    """
    try:
        text = (model_dir / "config.json").read_text(encoding="utf-8")
        limit = int(json.loads(text)["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"model.student_model_path = {str(model_dir)!r}: no usable config.json with max_position_embeddings "
            f"({type(error).__name__}: {error}); give the directory of a Hugging Face model"
        ) from error
    return min(max_seq_len + HINT_ROOM, limit)
