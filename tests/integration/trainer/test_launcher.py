"""The process as it is started: a real Redis, an engine's control routes, and the signals that end it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from hintloop_contract.broker import Broker, WeightsState
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import SAMPLES

from .conftest import students


def _fakes() -> ModuleType:
    path = Path(__file__).parents[2] / "unit" / "trainer" / "fake_engines.py"
    spec = importlib.util.spec_from_file_location("trainer_fake_engines", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fakes = _fakes()


async def wait_for(broker: Broker, **wanted: str) -> dict[str, str]:
    """The trainer's status once it says ``wanted``."""
    async with asyncio.timeout(240):
        while True:
            status = await broker.get_status("trainer")
            if all(status.get(name) == value for name, value in wanted.items()):
                return status
            await asyncio.sleep(0.2)


def write_config(folder: Path, dialect: str, engine: str, redis: str) -> None:
    (folder / "config.toml").write_text(
        f"""
[model]
student_model_path = "{folder / "student"}"
dtype = "float32"
[rollout]
engine = "{dialect}"
rollout_batch_size = 2
[training]
train_batch_size = 2
learning_rate = 1e-3
checkpoint_dir = "{folder / "checkpoints"}"
[policy]
name = "demo"
engines = ["{engine}"]
[publishing]
weights_dir = "{folder / "weights"}"
[gate]
enabled = false
[redis]
url = "{redis}"
"""
    )


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_the_process_trains_publishes_and_ends_cleanly(dialect: str, redis_server: Any, tmp_path: Path) -> None:
    students.tiny_model("qwen3", tied=True).save_pretrained(tmp_path / "student")
    engine = fakes.FakeEngine(fakes.transformers_scorer)
    async with TestServer(engine.app()) as server:
        write_config(tmp_path, dialect, str(server.make_url("")).rstrip("/"), redis_server.url)
        broker = RedisBroker(connect(redis_server.url), "demo")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hintloop_trainer", "--config", str(tmp_path / "config.toml")),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            await wait_for(broker, phase="collecting", step="0")
            assert await broker.weights() == WeightsState(current=1, updating=None)
            for turn in range(3):
                await broker.append(SAMPLES, students.make_sample(turn))
            status = await wait_for(broker, phase="collecting", step="1")
            assert status["version"] == "2"
            assert engine.version == "2"
            assert engine.directory == str(tmp_path / "weights" / "2")
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.wait_for(process.communicate(), 120)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, errors.decode()[-3000:]
        assert (await broker.get_status("trainer"))["phase"] == "stopped"
        # Two are in the checkpoint and acknowledged; the third was given back.
        assert (await broker.counts(SAMPLES)).length == 1
        state = json.loads((tmp_path / "checkpoints" / "step-000000001" / "state.json").read_text())
        assert state["trained_turn_ids"] == ["turn-0000", "turn-0001"]
        await broker.close()
