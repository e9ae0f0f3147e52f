"""A client whose writes count only once replicas have them: what it acknowledged, a failover does not take back.

Owns the waiting alone. A write that too few replicas confirmed was made on the master all the same: it is made again
when Redis counts as back, and finds itself done (the scripts are guarded).
"""

from __future__ import annotations

from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import TimeoutError as RedisTimeoutError

#: Commands that change what must not be lost. What a consumer group gave out is not among them: it is given out anew.
WRITES = frozenset({"EVALSHA", "EVAL", "SET", "HSET", "HINCRBY", "INCR", "INCRBY", "XADD", "XDEL", "ZADD"})


class Replicas:
    """How many replicas must have a write, and for how long one waits for them."""

    def __init__(self, count: int, wait_ms: int) -> None:
        """At least ``count`` of them within ``wait_ms``."""
        self.count = count
        self.wait_ms = wait_ms

    async def confirm(self, connection: Any) -> None:
        """Wait for what was written on ``connection``; raises a time-out when too few have it."""
        await connection.send_command("WAIT", self.count, self.wait_ms)
        reached = int(await connection.read_response())
        if reached < self.count:
            raise RedisTimeoutError(
                f"{reached} of {self.count} replica(s) confirmed a write within {self.wait_ms} ms (redis.wait_replicas)"
            )


class ConfirmedRedis(Redis):
    """`Redis` that waits for its replicas after each write, on the connection that wrote."""

    replicas: Replicas

    @classmethod
    def on(cls, pool: BlockingConnectionPool, count: int, wait_ms: int) -> ConfirmedRedis:
        """A client that owns ``pool``."""
        client = cls(connection_pool=pool)
        client.auto_close_connection_pool = True
        client.replicas = Replicas(count, wait_ms)
        return client

    async def _send_command_parse_response(self, conn: Any, command_name: Any, *args: Any, **options: Any) -> Any:
        send: Any = super()._send_command_parse_response
        reply = await send(conn, command_name, *args, **options)
        if command_name in WRITES:
            await self.replicas.confirm(conn)
        return reply

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """Commands that go together and are confirmed together."""
        pipe = ConfirmedPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipe.replicas = self.replicas
        return pipe


class ConfirmedPipeline(Pipeline):
    """`Pipeline` of such a client. A transaction of reads is not confirmed."""

    replicas: Replicas

    async def _execute_pipeline(self, connection: Any, commands: Any, raise_on_error: bool = True) -> Any:
        replies = await super()._execute_pipeline(connection, commands, raise_on_error)
        if any(command[0][0] in WRITES for command in commands):
            await self.replicas.confirm(connection)
        return replies
