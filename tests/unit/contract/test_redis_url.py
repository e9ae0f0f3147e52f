"""Addresses of Sentinels and of a Cluster: how they are read, and how they are refused without telling a password."""

from __future__ import annotations

import pytest
from hintloop_contract.config.loading import load_config
from hintloop_contract.errors import ConfigError
from hintloop_contract.redis_connection import connect, may_move
from hintloop_contract.redis_places import MovingConnection, MovingSSLConnection, SentinelMaster, SlotOwner
from hintloop_contract.redis_url import is_movable, parse_movable


def test_sentinels_are_read_with_their_default_port_and_ipv6() -> None:
    url = parse_movable("redis+sentinel://user:p%40ss@one,two:5000,[::1]:7/mymaster/2")
    assert (url.kind, url.tls, url.service) == ("sentinel", False, "mymaster")
    assert url.hosts == (("one", 26379), ("two", 5000), ("::1", 7))
    assert "p%40ss" not in repr(url)


def test_a_cluster_is_read_by_some_of_its_nodes() -> None:
    url = parse_movable("rediss+cluster://:secret@one,two:5000")
    assert (url.kind, url.tls, url.service, url.hosts) == ("cluster", True, "", (("one", 6379), ("two", 5000)))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://:secret@one:1", "the name of the service is missing"),
        ("redis+sentinel://:secret@one:1/mymaster/x", "the database behind the service's name is no number"),
        ("redis+sentinel://:secret@one:1, two:2/mymaster", "no HOST or HOST:PORT"),
        ("redis+sentinel://:secret@one:1,/mymaster", "no HOST or HOST:PORT"),
        ("redis+sentinel://:secret@one:70000/mymaster", "no HOST or HOST:PORT"),
        ("redis+cluster://:secret@one:1/0", "a Cluster has no database"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_config(flags={"redis.url": url})
    assert "secret" not in str(caught.value)
    assert "redis.url" in str(caught.value)


async def test_connections_carry_login_database_and_tls() -> None:
    client = connect(
        "rediss+sentinel://user:p%40ss@one:1/mymaster/2?ssl_cert_reqs=none", sentinel_password="theirs", policy="p"
    )
    kwargs = client.connection_pool.connection_kwargs
    assert (kwargs["username"], kwargs["password"], kwargs["db"]) == ("user", "p@ss", 2)
    assert isinstance(kwargs["place"], SentinelMaster)
    assert kwargs["place"]._options == {"ssl_cert_reqs": "none", "tls": True, "password": "theirs"}
    assert isinstance(client.connection_pool.make_connection(), MovingSSLConnection)
    assert may_move(client)
    await client.aclose()


async def test_a_cluster_is_asked_with_the_login_of_its_nodes() -> None:
    client = connect("redis+cluster://user:pw@one:1", policy="p")
    place = client.connection_pool.connection_kwargs["place"]
    assert isinstance(place, SlotOwner)
    assert place._options == {"username": "user", "password": "pw", "tls": False}
    assert isinstance(client.connection_pool.make_connection(), MovingConnection)
    await client.aclose()


async def test_one_redis_does_not_move() -> None:
    client = connect("redis://127.0.0.1:1/0")
    assert not may_move(client)
    assert not is_movable("redis://127.0.0.1:1/0")
    await client.aclose()
