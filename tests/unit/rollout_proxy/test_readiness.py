"""What is known of an engine: learnt in the background, kept while the engine is the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hintloop_rollout_proxy import readiness
from hintloop_rollout_proxy.engines import dialect_of
from hintloop_rollout_proxy.engines.probe import Health
from hintloop_rollout_proxy.readiness import EngineWatch
from hintloop_rollout_proxy.upstream import EnginePool, make_session


@pytest.fixture
async def watch(fake_engine: Any) -> AsyncIterator[EngineWatch]:
    session = make_session()
    yield EngineWatch(EnginePool([fake_engine.url], session), dialect_of("vllm"), "")
    await session.close()


async def settle(watch: EngineWatch) -> None:
    """Poll once and wait for the probe that it began, if any."""
    (engine,) = watch._pool.engines
    await watch.poll(engine)
    probing = watch._looks[engine.url].probing
    if probing is not None:
        await probing


async def test_missed_checks_keep_what_was_learnt_until_it_may_be_another_start(
    watch: EngineWatch, fake_engine: Any
) -> None:
    (engine,) = watch._pool.engines
    await settle(watch)
    assert watch.ready and engine.defaults_neutral
    num_probes, fake_engine.healthy = fake_engine.num_probes, False
    for _ in range(readiness.FORGET_AFTER - 1):
        await settle(watch)
        assert not watch.ready and engine.behaviour_space == "processed"
    fake_engine.healthy = True
    await settle(watch)
    assert watch.ready and fake_engine.num_probes == num_probes
    fake_engine.healthy = False
    for _ in range(readiness.FORGET_AFTER):
        await settle(watch)
    assert engine.behaviour_space is None and not engine.defaults_neutral
    fake_engine.healthy = True
    await settle(watch)
    assert watch.ready and fake_engine.num_probes > num_probes


async def test_a_name_that_new_weights_changed_is_learnt(watch: EngineWatch, fake_engine: Any) -> None:
    (engine,) = watch._pool.engines
    await settle(watch)
    assert engine.model == "engine-name"
    num_probes, fake_engine.model = fake_engine.num_probes, "weights/7"
    await settle(watch)
    assert engine.model == "weights/7"
    assert fake_engine.num_probes == num_probes


async def test_an_engine_that_is_gone_is_probed_anew(
    watch: EngineWatch, fake_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine,) = watch._pool.engines
    await settle(watch)

    async def gone() -> Health:
        return Health.GONE

    monkeypatch.setattr(watch._looks[engine.url].probe, "health", gone)
    await settle(watch)
    assert engine.behaviour_space is None and engine.model is None


async def test_nothing_listens_means_gone() -> None:
    session = make_session()
    watch = EngineWatch(EnginePool(["http://127.0.0.1:9"], session), dialect_of("vllm"), "")
    assert await watch._looks["http://127.0.0.1:9"].probe.health() is Health.GONE
    await session.close()


@pytest.mark.parametrize("ids", [[7], []])
async def test_scores_of_an_unknown_shape_end_no_watch_and_are_asked_again_later(
    ids: list[int], watch: EngineWatch, fake_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine,) = watch._pool.engines
    monkeypatch.setattr(readiness, "POLL_WHILE_STARTING_S", 0.01)
    watch._looks[engine.url].wait_s = 0.05
    fake_engine.sampled_ids = ids
    probe = watch._looks[engine.url].probe
    polls: list[int] = []
    health = probe.health

    async def counted() -> Health:
        polls.append(1)
        return await health()

    monkeypatch.setattr(probe, "health", counted)
    running = asyncio.create_task(watch.run())
    async with asyncio.timeout(60):
        while len(polls) < 60 or fake_engine.num_probes < 2:
            await asyncio.sleep(0.01)
        assert not running.done()
        # At 0, 0.05, 0.15, 0.35 s and so on, and not at each of the polls.
        assert fake_engine.num_probes <= 20
        assert "unknown shape" in str(watch.describe()[0]["problem"])
        fake_engine.sampled_ids = [7, 8]
        while not watch.ready:
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
