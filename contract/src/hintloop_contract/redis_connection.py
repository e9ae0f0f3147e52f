"""One connection pool to Redis, and every way in which Redis can be away. Owns time limits; no key, no command."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from hintloop_contract.errors import DependencyError
from hintloop_contract.redis_places import MovingConnection, MovingSSLConnection, place_of
from hintloop_contract.redis_replicas import ConfirmedRedis
from hintloop_contract.redis_url import is_movable, parse_movable

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")

#: Longest wait for Redis to answer, beside the time that a call itself asks it to block.
CALL_TIMEOUT_S = 20.0
# Redis 6.2 reports an error inside a script as "Error running script (...): ... -OOM command not allowed ...".
_UNAVAILABLE = re.compile(
    r"(^|[\s:-])(MISCONF|OOM|LOADING|BUSY|CLUSTERDOWN|READONLY|MASTERDOWN|NOREPLICAS|MOVED|ASK|TRYAGAIN)\b"
)


def available(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Turn every way in which Redis can be away into ``DependencyError``."""

    @functools.wraps(method)
    async def guarded(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            # The client's own read timeout would lose a task's cancellation; this one does not.
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await method(self, *args, **kwargs)
        except TimeoutError as error:
            raise DependencyError("redis", f"no answer within {CALL_TIMEOUT_S:.0f} s") from error
        except (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OutOfMemoryError, OSError) as error:
            raise DependencyError("redis", f"{type(error).__name__}: {error}") from error
        except ResponseError as error:
            if _UNAVAILABLE.search(str(error)):
                raise DependencyError("redis", str(error)) from error
            raise

    return guarded  # type: ignore[return-value]  # functools.wraps hides that self is the first argument


def connect(
    url: str,
    *,
    policy: str = "default",
    sentinel_password: str = "",
    wait_replicas: int = 0,
    wait_ms: int = 1000,
    max_connections: int = 32,
) -> Redis:
    """A client whose pool waits for a free connection instead of failing.

    ``url`` is that of one Redis, or names Sentinels or a Cluster (`redis_url`); in a Cluster the client talks to the
    node that owns ``policy``'s slot. A write returns once ``wait_replicas`` replicas have it, or raises after
    ``wait_ms``.

    Raises:
        ConfigError: ``url`` names Sentinels or a Cluster in no form that is known.
    """
    options: dict[str, Any] = {
        "max_connections": max_connections,
        "timeout": 30,
        "socket_connect_timeout": 5,
        "health_check_interval": 15,
        "protocol": 2,  # replies are read in this shape, whatever the client's default becomes
        "socket_timeout": None,  # redis-py 8.1 loses a task's cancellation when its read timeout is on
    }
    # A unix socket knows no keep-alive, and redis-py refuses the option there.
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    if is_movable(url):
        pool = _moving_pool(url, options, policy, sentinel_password)
    else:
        pool = BlockingConnectionPool.from_url(url, **options)
    return ConfirmedRedis.on(pool, wait_replicas, wait_ms) if wait_replicas else Redis.from_pool(pool)


def may_move(client: Redis) -> bool:
    """Whether ``client`` follows Sentinels or a Cluster to another node."""
    return "place" in client.connection_pool.connection_kwargs


def _moving_pool(url: str, options: dict[str, Any], policy: str, sentinel_password: str) -> BlockingConnectionPool:
    movable = parse_movable(url)
    own: dict[str, Any] = {**parse_url(movable.plain)}
    for given_by_place in ("host", "port", "connection_class"):
        own.pop(given_by_place, None)
    place = place_of(movable, own, policy, sentinel_password=sentinel_password)
    kind = MovingSSLConnection if movable.tls else MovingConnection
    return BlockingConnectionPool(connection_class=kind, place=place, **(options | own))
