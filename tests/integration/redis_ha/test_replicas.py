"""Writes that wait for replicas, and addresses under which nobody answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hintloop.doctor.checks.redis import check
from hintloop.doctor.look import looking
from hintloop_contract.config.loading import load_config
from hintloop_contract.config.schema import Config
from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Capture, Drop, DropReason, Stage
from hintloop_contract.opening import open_broker
from hintloop_contract.streams import CAPTURES, DROPS

from .servers import PASSWORD, Sentinels, free_ports


def open_on(url: str, **redis: Any) -> Any:
    return open_broker(Config.model_validate({"redis": {"url": url, **redis}}))


def capture(turn_id: str) -> Capture:
    return Capture(turn_id=turn_id, engine="vllm", engine_url="", request=b"{}", start_ms=0, end_ms=1)


async def test_a_write_that_no_replica_has_does_not_count_and_is_not_made_twice(redis_server: Any) -> None:
    broker = open_on(redis_server.url, wait_replicas=1, wait_ms=50)
    drop = Drop(turn_id="b", stage=str(Stage.CAPTURE), reason=str(DropReason.BACKPRESSURE), detail="")
    for _ in range(2):
        for write in (
            lambda: broker.append(CAPTURES, capture("a")),
            lambda: broker.drop_many([drop]),
            broker.next_version,
            lambda: broker.count("trained"),
        ):
            begun = time.monotonic()
            with pytest.raises(DependencyError, match=r"0 of 1 replica\(s\) confirmed a write within 50 ms"):
                await write()
            assert time.monotonic() - begun >= 0.05
    # Reading waits for nobody.
    assert (await broker.counts(CAPTURES)).length == 1
    assert (await broker.counts(DROPS)).length == 1
    assert await broker.untrained() == 0
    await broker.close()


async def test_without_sentinels_redis_is_away() -> None:
    ports = free_ports(2)
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    for url, said in (
        (f"redis+sentinel://:secret@{hosts}/mymaster", "no Sentinel could say where 'mymaster' is"),
        (f"redis+cluster://:secret@{hosts}", "no node could say who owns slot 5718"),
    ):
        broker = open_on(url)
        with pytest.raises(DependencyError, match=said) as caught:
            await broker.time_ms()
        assert all(str(port) in str(caught.value) for port in ports)
        assert "secret" not in str(caught.value)
        await broker.close()


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    group = Sentinels(tmp_path, sentinel_password="theirs")
    try:
        group.start()
        yield group
    finally:
        group.stop()


async def test_sentinels_with_a_password_of_their_own(sentinels: Sentinels) -> None:
    broker = open_on(sentinels.url)
    with pytest.raises(DependencyError, match="Authentication required"):
        await broker.time_ms()
    await broker.close()
    opened = partial(open_on, sentinel_password="theirs")
    broker = opened(sentinels.url, wait_replicas=2)
    await broker.ensure_groups()
    assert await broker.append(CAPTURES, capture("a"))
    assert await broker.durability_problems() == []
    await broker.close()
    careless = opened(sentinels.url)
    (problem,) = await careless.durability_problems()
    assert "redis.wait_replicas is 0" in problem
    await careless.close()
    wrong = opened(sentinels.url.replace("/hintloop", "/other"))
    with pytest.raises(DependencyError, match="knows no service 'other'"):
        await wrong.time_ms()
    await wrong.close()
    denied = opened(sentinels.url.replace("pass", "word"))
    with pytest.raises(DependencyError, match="invalid username-password pair"):
        await denied.time_ms()
    await denied.close()
    assert PASSWORD not in sentinels.url


async def test_doctor_looks_through_sentinels_and_names_what_a_failover_would_forget(sentinels: Sentinels) -> None:
    flags = {"redis.url": sentinels.url, "redis.sentinel_password": "theirs"}
    for more, outcomes in (({}, ["ok", "warn"]), ({"redis.wait_replicas": "1"}, ["ok"])):
        async with looking(load_config(flags={**flags, **more}, environ={})) as look:
            await look.broker.ensure_groups()
            found = await check(look)
            assert [finding.outcome for finding in found if finding.check in ("redis", "durability")] == outcomes
            assert look.seen is not None
    sentinels.master().kill()
    async with looking(load_config(flags={**flags, "redis.url": sentinels.url}, environ={})) as look:
        (finding,) = await check(look)
        assert (finding.outcome, finding.cause) == ("fail", Cause.REDIS_AWAY)
