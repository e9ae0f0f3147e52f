"""Traffic is put aside and put back byte for byte; what is not traffic stays."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from tests.faults.traffic_keys import TrafficKeys


def fill(client: Redis) -> None:
    client.xadd("hl:{p}:turns", {"data": b"\x00\xff"})
    client.xgroup_create("hl:{p}:turns", "judge", id="0")
    client.xreadgroup("judge", "one", {"hl:{p}:turns": ">"})
    client.hset("hl:{p}:funnel", "captured", "7")
    client.set("hl:{p}:seen:1", "1", ex=1000)
    client.hset("hl:{p}:weights", "current", "3")
    client.set("hl:{other}:funnel", "mine")


@pytest.mark.parametrize("fresh", [True, False])
def test_traffic_comes_back(redis_server: Any, fresh: bool) -> None:
    client = Redis.from_url(redis_server.url)
    fill(client)
    keys = TrafficKeys(client, "p")
    before = {key: client.dump(key) for key in keys.names()}
    assert set(before) == {b"hl:{p}:turns", b"hl:{p}:funnel", b"hl:{p}:seen:1"}
    with keys.put_aside(fresh=fresh):
        assert bool(client.exists("hl:{p}:funnel")) is not fresh
        client.hset("hl:{p}:funnel", "captured", "9")
        client.xadd("hl:{p}:drops", {"data": b"1"})
        client.hset("hl:{p}:weights", "current", "4")
    assert {key: client.dump(key) for key in keys.names()} == before
    assert client.xpending("hl:{p}:turns", "judge")["pending"] == 1
    assert 0 < client.ttl("hl:{p}:seen:1") <= 1000
    assert client.hget("hl:{p}:weights", "current") == b"4"
    assert client.get("hl:{other}:funnel") == b"mine"
    client.close()
