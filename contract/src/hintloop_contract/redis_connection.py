"""One connection pool to Redis, and every way in which Redis can be away. Owns time limits; no key, no command."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from hintloop_contract.errors import DependencyError

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")

#: Longest wait for Redis to answer, beside the time that a call itself asks it to block.
CALL_TIMEOUT_S = 20.0
# Redis 6.2 reports an error inside a script as "Error running script (...): ... -OOM command not allowed ...".
_UNAVAILABLE = re.compile(r"(^|[\s:-])(MISCONF|OOM|LOADING|BUSY|CLUSTERDOWN|READONLY|MASTERDOWN|NOREPLICAS)\b")


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


def connect(url: str, *, max_connections: int = 32) -> Redis:
    """A client whose pool waits for a free connection instead of failing."""
    # A unix socket knows no keep-alive, and redis-py refuses the option there.
    keepalive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=30,
        socket_connect_timeout=5,
        health_check_interval=15,
        protocol=2,  # replies are read in this shape, whatever the client's default becomes
        socket_timeout=None,  # redis-py 8.1 loses a task's cancellation when its read timeout is on
        **keepalive,
    )
    return Redis.from_pool(pool)
