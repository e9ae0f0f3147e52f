"""How the process ends: by a signal, or because a task that it needs ended."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy import wiring
from hintloop_rollout_proxy.errors import BackgroundError

from .conftest import FakeEngine, make_config


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("task", ["linker_task.LinkerTask", "writer.CaptureWriter"])
async def test_a_task_that_dies_ends_the_process(
    task: str, fake_engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*words: Any) -> None:
        await asyncio.sleep(0.2)
        raise RuntimeError("a bug")

    monkeypatch.setattr(f"hintloop_rollout_proxy.{task}.run", fail)
    broker = MemoryBroker()
    monkeypatch.setattr(wiring, "open_broker", lambda config: broker)
    config = make_config(fake_engine, tmp_path, redis={"check_durability": False}, proxy={"port": free_port()})
    async with asyncio.timeout(60):
        with pytest.raises(BackgroundError, match="failed: RuntimeError at test_wiring.py"):
            await wiring.serve(config, with_linker=True)


async def test_a_linker_that_ends_as_it_is_told_to_is_no_failure(
    fake_engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it sees the signal before the server does."""

    async def end_at_once(task: Any, stop: asyncio.Event) -> None:
        await asyncio.sleep(0.2)
        stop.set()

    monkeypatch.setattr("hintloop_rollout_proxy.linker_task.LinkerTask.run", end_at_once)
    broker = MemoryBroker()
    monkeypatch.setattr(wiring, "open_broker", lambda config: broker)
    config = make_config(fake_engine, tmp_path, redis={"check_durability": False}, proxy={"port": free_port()})
    async with asyncio.timeout(60):
        await wiring.serve(config, with_linker=True)


async def test_the_spool_limit_stands_beside_what_is_in_it(fake_engine: FakeEngine, tmp_path: Path) -> None:
    config = make_config(fake_engine, tmp_path, proxy={"spool_max_bytes": 12_345})
    broker = MemoryBroker()
    async with wiring.make_deps(config, broker) as deps, wiring.running(deps):
        assert deps.metrics.registry.get_sample_value("hintloop_proxy_spool_max_bytes") == 12_345
        assert deps.metrics.registry.get_sample_value("hintloop_proxy_spool_bytes") == 0
    await broker.close()
