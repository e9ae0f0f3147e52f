"""What keys of the configuration change in the running proxy and linker, where no other test shows it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hintloop_contract.errors import ConfigError, DependencyError
from hintloop_contract.streams import CAPTURES, TURNS
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy import linker_task, wiring
from hintloop_rollout_proxy.metrics import ProxyMetrics

from .conftest import FakeEngine, make_config
from .test_linker_task import make_capture, run_over
from .test_linker_task import make_config as make_linker_config
from .test_serving import QUESTION
from .test_wiring import free_port


async def test_an_engine_of_host_and_port_is_asked_where_no_engines_are_named(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    rollout = {"sglang_host": "localhost", "sglang_port": int(fake_engine.url.rpartition(":")[2])}
    async with proxy(policy={"engines": []}, rollout=rollout) as running:
        status, _ = await running.ask(QUESTION)
        (capture,) = await running.captures()
    assert (status, len(fake_engine.seen)) == (200, 1)
    assert capture.engine_url == f"http://localhost:{rollout['sglang_port']}"


async def test_top_p_is_filled_in_where_it_is_left_out(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    async with proxy(rollout={"apply_sampling_defaults": True, "top_p": 0.9}) as running:
        await running.ask(QUESTION)
        (capture,) = await running.captures()
    assert fake_engine.seen[0][1]["top_p"] == capture.sampling.top_p == 0.9


async def test_without_a_wait_an_engine_that_is_away_is_told_of_at_once(proxy: Any) -> None:
    async with proxy(policy={"engines": ["http://127.0.0.1:9"]}, proxy={"engine_wait_s": 0.0}) as running:
        async with asyncio.timeout(15):
            status, _ = await running.ask(QUESTION)
    assert status == 502


async def test_agents_see_the_configured_model_name(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    async with proxy(policy={"served_model_name": "house-model"}) as running:
        _, body = await running.ask(QUESTION | {"model": "whatever"})
    assert json.loads(body)["model"] == "house-model"


async def test_the_proxy_listens_where_it_is_told(fake_engine: Any, proxy: Any) -> None:
    async with proxy(proxy={"host": "127.0.0.2"}) as running:
        port = running.url.rpartition(":")[2]
        async with running.session.get(f"http://127.0.0.2:{port}/hintloop/health") as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientConnectorError):
            await running.session.get(f"http://127.0.0.1:{port}/hintloop/health")


async def test_the_proxy_is_at_its_port(
    fake_engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, port = MemoryBroker(), free_port()
    monkeypatch.setattr(wiring, "open_broker", lambda config: broker)
    config = make_config(fake_engine, tmp_path, redis={"check_durability": False}, proxy={"port": port})
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        serving = asyncio.create_task(wiring.serve(config, with_linker=False))
        while not serving.done():
            try:
                async with session.get(f"http://127.0.0.1:{port}/hintloop/health") as answer:
                    assert answer.status == 200
                break
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)
        await serving


class Away(MemoryBroker):
    """A Redis that takes no capture."""

    async def append_many(self, *words: Any, **named: Any) -> Any:
        raise DependencyError("redis", "away")


@pytest.mark.parametrize(("max_bytes", "fate"), [(1, "lost"), (1_000_000, "spooled")])
async def test_the_spool_takes_no_more_than_its_bytes(
    fake_engine: Any, proxy: Any, tmp_path: Path, max_bytes: int, fate: str
) -> None:
    fake_engine.replay("chat_stop")
    broker = Away()
    async with proxy(broker=broker, proxy={"spool_max_bytes": max_bytes}) as running:
        await running.ask(QUESTION)
        registry = running.deps.metrics.registry

        def fates() -> list[str]:
            lost = registry.get_sample_value("hintloop_proxy_lost_total", {"cause": "spool_full"})
            spooled = registry.get_sample_value("hintloop_proxy_spooled_total")
            return ["lost"] * bool(lost) + ["spooled"] * bool(spooled)

        async with asyncio.timeout(60):
            while not fates():
                await asyncio.sleep(0.02)
        assert fates() == [fate]
    # The fixture's directory of the spool; `proxy.spool_dir` is looked at here, too.
    kept = sum(file.stat().st_size for file in (tmp_path / "spool").iterdir())
    assert (kept > 1) == (fate == "spooled")
    await broker.close()


class Forgetful:
    """A Redis that could lose messages."""

    async def ensure_groups(self) -> None: ...

    async def durability_problems(self) -> list[str]:
        return ["appendonly is off"]


@pytest.mark.parametrize("checked", [True, False])
async def test_a_redis_that_could_lose_messages_is_refused_where_that_is_checked(
    fake_engine: FakeEngine, tmp_path: Path, checked: bool
) -> None:
    config = make_config(fake_engine, tmp_path, redis={"check_durability": checked})
    if not checked:
        await wiring.check_redis(config, Forgetful())  # type: ignore[arg-type]
        return
    with pytest.raises(ConfigError, match="appendonly is off; or set redis.check_durability = false"):
        await wiring.check_redis(config, Forgetful())  # type: ignore[arg-type]


@pytest.mark.parametrize(("num_turns", "segments"), [(1, [0, 1, 2]), (2, [0, 0, 1]), (10, [0, 0, 0])])
async def test_a_session_is_cut_into_segments_of_the_configured_turns(num_turns: int, segments: list[int]) -> None:
    broker = MemoryBroker()
    await broker.ensure_groups()
    texts = ["q", "fine", "more", "fine", "again", "fine", "on"]
    captures = [
        make_capture(name, *texts[: 2 * place + 1], start_ms=1000 * (place + 1), end_ms=1000 * (place + 1) + 100)
        for place, name in enumerate("abcd")
    ]
    await run_over(broker, make_linker_config(rollout={"max_turns_per_session": num_turns}), *captures)
    turns = [entry.message for entry in await broker.read(TURNS, "test", 10, None)]
    assert [turn.segment for turn in turns] == segments
    await broker.close()


@pytest.mark.parametrize(("settle_ms", "linked"), [(60_000, []), (100, ["a"])])
async def test_an_uncertain_link_waits_for_the_configured_time(
    settle_ms: int, linked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linker_task, "CALM_S", 0.0)
    broker = MemoryBroker()
    await broker.ensure_groups()
    now_ms = await broker.time_ms()
    config = make_linker_config(linker={"settle_ms": settle_ms, "reorder_ms": 0})
    task = linker_task.LinkerTask(broker, config, ProxyMetrics())
    asked: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    told = [*asked, {"role": "assistant", "content": "fine"}, {"role": "user", "content": "more"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    # In a session of its own name a request with other tools may be the next, and may not.
    for turn_id, request, ago_ms in (
        ("a", {"messages": asked}, 20_000),
        ("b", {"messages": told, "tools": tools}, 10_000),
    ):
        times = {"start_ms": now_ms - ago_ms - 1000, "end_ms": now_ms - ago_ms}
        data = json.dumps(request).encode()
        await broker.append(CAPTURES, make_capture(turn_id, request=data, session_key="header:x-session-id:1", **times))
    await task._hold_lease()
    for _ in range(4):
        await task.step()
    assert [entry.turn_id for entry in await broker.read(TURNS, "test", 10, 50)] == linked
    await broker.close()
