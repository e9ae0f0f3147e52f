"""The broker on Redis 6.2 or newer. Owns connections and the translation to commands; rules stand in `broker`."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from hintloop_contract import scripts
from hintloop_contract.broker import Entry, Funnel, StreamCounts, WeightsState
from hintloop_contract.codec import decode_fields, decode_payload, encode_fields, encode_payload
from hintloop_contract.errors import DependencyError, MessageError
from hintloop_contract.messages import DeadLetter, Drop, DropReason, Message, TurnRecord
from hintloop_contract.streams import DEAD, DROPS, JUDGED, SAMPLES, STREAMS, TURNS, Keys, Stream

P = ParamSpec("P")
R = TypeVar("R")

SEEN_TTL_S = 604_800
DROPS_MAX_AGE_MS = 7 * 24 * 3600 * 1000
INFLIGHT_MAX_AGE_MS = 24 * 3600 * 1000
#: Idle time given to a released message, so that any claim takes it.
RELEASED_IDLE_MS = 24 * 3600 * 1000
#: Longest wait for Redis to answer, beside the time that a call itself asks it to block.
CALL_TIMEOUT_S = 20.0
# Redis 6.2 reports an error inside a script as "Error running script (...): ... -OOM command not allowed ...".
_UNAVAILABLE = re.compile(r"(^|[\s:-])(MISCONF|OOM|LOADING|BUSY|CLUSTERDOWN|READONLY|MASTERDOWN|NOREPLICAS)\b")


def _available(
    method: Callable[Concatenate[RedisBroker, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[RedisBroker, P], Coroutine[Any, Any, R]]:
    """Turn every way in which Redis can be away into ``DependencyError``."""

    @functools.wraps(method)
    async def guarded(self: RedisBroker, *args: P.args, **kwargs: P.kwargs) -> R:
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


class RedisBroker:
    """`Broker` over a ``redis.asyncio`` client. See `broker.Broker` for what each method promises."""

    def __init__(self, client: Any, policy: str, *, turn_retention_s: int = 3600) -> None:
        """Use ``client`` for ``policy``; a turn's record stays ``turn_retention_s`` seconds after its end."""
        self.client = client
        self.policy = policy
        self.keys = Keys(policy)
        self._retention_s = turn_retention_s
        self._append = client.register_script(scripts.APPEND)
        self._commit = client.register_script(scripts.COMMIT)
        self._drop = client.register_script(scripts.DROP)
        self._finish = client.register_script(scripts.FINISH)
        self._fail = client.register_script(scripts.FAIL)
        self._lease = client.register_script(scripts.LEASE)
        self._remove_idle = client.register_script(scripts.REMOVE_IDLE_CONSUMERS)

    def _attempts(self, stream: Stream) -> str:
        return self.keys.of(f"attempts:{stream.name}")

    def _fields(self, message: Message, tenant: str, traceparent: str = "") -> list[bytes]:
        fields = encode_fields(message, policy=self.policy, tenant=tenant, traceparent=traceparent)
        return [part for name, value in fields.items() for part in (name.encode(), value)]

    @_available
    async def time_ms(self) -> int:
        """Redis time, milliseconds."""
        seconds, microseconds = await self.client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    @_available
    async def ensure_groups(self) -> None:
        """Create every consumer group at id 0, if missing."""
        for stream in STREAMS:
            if stream.group is not None:
                await self._ensure_group(stream)

    async def _ensure_group(self, stream: Stream) -> None:
        try:
            await self.client.xgroup_create(self.keys.stream(stream), stream.group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    @_available
    async def append(self, stream: Stream, message: Message, *, tenant: str = "default", traceparent: str = "") -> bool:
        """Append a message that has no input message; false when its turn id was appended before."""
        keys = [self.keys.seen(message.turn_id), self.keys.stream(stream), self.keys.funnel]
        args: list[Any] = [SEEN_TTL_S, stream.counter or "", *self._fields(message, tenant, traceparent)]
        return bool(await self._append(keys=keys, args=args))

    @_available
    async def read(self, stream: Stream, consumer: str, count: int, block_ms: int) -> list[Entry[Any]]:
        """Read up to ``count`` new messages for the stream's group."""
        return await self._read_group(stream, consumer, count, ">", block_ms)

    @_available
    async def reread(self, stream: Stream, consumer: str, count: int, after: str = "0") -> list[Entry[Any]]:
        """Messages that ``consumer`` already holds, in order, after entry id ``after``."""
        return await self._read_group(stream, consumer, count, after, None)

    async def _read_group(
        self, stream: Stream, consumer: str, count: int, start: str, block_ms: int | None
    ) -> list[Entry[Any]]:
        key = self.keys.stream(stream)
        try:
            reply = await self.client.xreadgroup(stream.group, consumer, {key: start}, count=count, block=block_ms)
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await self._ensure_group(stream)
            return []
        items = [item for _, batch in reply for item in batch] if reply else []
        return await self._decode(stream, items)

    @_available
    async def claim(self, stream: Stream, consumer: str, count: int, idle_ms: int) -> list[Entry[Any]]:
        """Take over messages that no one renewed for ``idle_ms``."""
        items: list[tuple[bytes, dict[bytes, bytes]]] = []
        cursor = "0-0"
        while len(items) < count:
            try:
                cursor, found, *_ = await self.client.xautoclaim(
                    self.keys.stream(stream),
                    stream.group,
                    consumer,
                    min_idle_time=idle_ms,
                    start_id=cursor,
                    count=count - len(items),
                )
            except ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise
                await self._ensure_group(stream)
                break
            # Redis 6.2 lists entries that were deleted meanwhile as nil.
            items += [item for item in found if item[0] is not None and item[1]]
            # One call looks at a bounded number of pending entries; the cursor says where the next goes on.
            if cursor in (b"0-0", "0-0"):
                break
        return await self._decode(stream, items)

    async def _decode(self, stream: Stream, items: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> list[Entry[Any]]:
        entries: list[Entry[Any]] = []
        for raw_id, fields in items:
            entry_id = raw_id.decode()
            turn_id = fields.get(b"turn_id", b"").decode(errors="replace") or f"unknown-{entry_id}"
            tenant = fields.get(b"tenant", b"default").decode(errors="replace")
            try:
                message = decode_fields(fields, stream.message)
            except MessageError as error:
                await self._bury(stream, entry_id, turn_id, tenant, fields.get(b"data", b""), str(error), "", 1)
                continue
            traceparent = fields.get(b"traceparent", b"").decode(errors="replace")
            entries.append(Entry(stream, entry_id, turn_id, message, tenant, traceparent))
        return entries

    @_available
    async def renew(self, stream: Stream, consumer: str, entry_ids: Sequence[str]) -> None:
        """Tell the others that ``consumer`` still works on these."""
        if entry_ids:
            key = self.keys.stream(stream)
            await self.client.xclaim(key, stream.group, consumer, 0, list(entry_ids), justid=True)

    @_available
    async def release(self, entry: Entry[Any]) -> None:
        """Give a held message up so that any worker can claim it at once."""
        key = self.keys.stream(entry.stream)
        await self.client.xclaim(
            key, entry.stream.group, "released", 0, [entry.entry_id], idle=RELEASED_IDLE_MS, justid=True
        )

    @_available
    async def commit(
        self,
        entry: Entry[Any],
        out: Stream,
        message: Message,
        *,
        counters: Sequence[str] = (),
        record: TurnRecord | None = None,
        fence: int | None = None,
    ) -> bool:
        """Acknowledge, delete and append in one step; false when another finished first, or the fence is old."""
        steps = [out.counter, *counters] if out.counter else list(counters)
        keys = [
            self.keys.stream(entry.stream),
            self.keys.stream(out),
            self.keys.funnel,
            self.keys.fence,
            self.keys.turn(message.turn_id),
            self._attempts(entry.stream),
        ]
        args: list[Any] = [
            entry.stream.group,
            entry.entry_id,
            "" if fence is None else fence,
            b"" if record is None else encode_payload(record),
            len(steps),
            *steps,
            *self._fields(message, entry.tenant, entry.traceparent),
        ]
        return int(await self._commit(keys=keys, args=args)) == 1

    @_available
    async def drop(self, entry: Entry[Any] | None, drop: Drop, *, fence: int | None = None) -> bool:
        """Acknowledge and delete ``entry`` (if any), append the drop and count it; false when already done."""
        stream = entry.stream if entry else DROPS
        keys = [
            self.keys.stream(stream),
            self.keys.stream(DROPS),
            self.keys.drop_counts,
            self.keys.turn(drop.turn_id),
            self.keys.fence,
            self._attempts(stream),
            self.keys.seen(drop.turn_id),
        ]
        args: list[Any] = [
            stream.group or "",
            entry.entry_id if entry else "",
            "" if fence is None else fence,
            self._retention_s,
            f"{drop.stage}:{drop.reason}",
            DROPS_MAX_AGE_MS,
            SEEN_TTL_S,
            *self._fields(drop, drop.tenant),
        ]
        return int(await self._drop(keys=keys, args=args)) == 1

    @_available
    async def finish(self, entries: Sequence[Entry[Any]]) -> int:
        """Acknowledge and delete entries whose effect is durable; the number that was still held."""
        done = 0
        for start in range(0, len(entries), 100):
            chunk = entries[start : start + 100]
            stream = chunk[0].stream
            keys = [self.keys.stream(stream), self._attempts(stream), *(self.keys.turn(e.turn_id) for e in chunk)]
            args = [stream.group, self._retention_s, *(e.entry_id for e in chunk)]
            done += int(await self._finish(keys=keys, args=args))
        return done

    @_available
    async def fail(self, entry: Entry[Any], *, stage: str, error: str, traceback: str, max_attempts: int) -> bool:
        """Count a failure of this message; true when it went to `dead` for the ``max_attempts``-th."""
        payload = encode_payload(entry.message)
        return await self._bury(
            entry.stream, entry.entry_id, entry.turn_id, entry.tenant, payload, error, traceback, max_attempts, stage
        )

    async def _bury(
        self,
        stream: Stream,
        entry_id: str,
        turn_id: str,
        tenant: str,
        payload: bytes,
        error: str,
        traceback: str,
        max_attempts: int,
        stage: str = "",
    ) -> bool:
        letter = DeadLetter(
            stream=stream.name,
            turn_id=turn_id,
            message=payload,
            error=error,
            traceback=traceback,
            attempts=max_attempts,
        )
        where = stage or stream.group or stream.name
        drop = Drop(turn_id=turn_id, stage=where, reason=DropReason.DEAD, detail=error, tenant=tenant)
        keys = [
            self.keys.stream(stream),
            self._attempts(stream),
            self.keys.stream(DEAD),
            self.keys.stream(DROPS),
            self.keys.drop_counts,
            self.keys.turn(turn_id),
        ]
        dead_fields = self._fields(letter, tenant)
        args: list[Any] = [
            stream.group,
            entry_id,
            max_attempts,
            self._retention_s,
            f"{where}:{DropReason.DEAD}",
            len(dead_fields),
            *dead_fields,
            *self._fields(drop, tenant),
        ]
        return bool(await self._fail(keys=keys, args=args))

    @_available
    async def get_turn(self, turn_id: str) -> TurnRecord | None:
        """The turn's record, or ``None`` when it was freed."""
        data = await self.client.get(self.keys.turn(turn_id))
        return None if data is None else decode_payload(data, TurnRecord)

    @_available
    async def counts(self, stream: Stream) -> StreamCounts:
        """Length and pending of a stream."""
        key = self.keys.stream(stream)
        length = int(await self.client.xlen(key))
        if stream.group is None or not length:
            return StreamCounts(length, 0)
        try:
            return StreamCounts(length, int((await self.client.xpending(key, stream.group))["pending"]))
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            return StreamCounts(length, 0)

    @_available
    async def untrained(self) -> int:
        """Turns let in and not yet trained: turns + judged + samples - trained but unacknowledged."""
        pipe = self.client.pipeline(transaction=True)
        for stream in (TURNS, JUDGED, SAMPLES):
            pipe.xlen(self.keys.stream(stream))
        pipe.get(self.keys.trained_pending)
        *lengths, trained = await pipe.execute()
        return max(0, sum(map(int, lengths)) - int(trained or 0))

    @_available
    async def count(self, step: str, amount: int = 1) -> None:
        """Add to a funnel step."""
        await self.client.hincrby(self.keys.funnel, step, amount)

    @_available
    async def funnel(self) -> Funnel:
        """Funnel counts."""
        steps = {k.decode(): int(v) for k, v in (await self.client.hgetall(self.keys.funnel)).items()}
        drops: dict[tuple[str, str], int] = {}
        for name, value in (await self.client.hgetall(self.keys.drop_counts)).items():
            stage, _, reason = name.decode().partition(":")
            drops[stage, reason] = int(value)
        return Funnel(steps, drops)

    @_available
    async def set_trained_pending(self, amount: int) -> None:
        """Say how many samples are trained and not yet acknowledged."""
        await self.client.set(self.keys.trained_pending, amount)

    @_available
    async def next_version(self) -> int:
        """A version number never used before."""
        return int(await self.client.incr(self.keys.version_counter))

    @_available
    async def describe_version(self, version: int, fields: dict[str, str]) -> None:
        """Store ``step, run, parent, weights_hash`` of a version."""
        await self.client.hset(self.keys.version(version), mapping=fields)

    @_available
    async def weights(self) -> WeightsState:
        """Which version is released, and which is being published."""
        current, updating = await self.client.hmget(self.keys.weights, "current", "updating")
        return WeightsState(int(current) if current else None, int(updating) if updating else None)

    @_available
    async def set_weights(self, state: WeightsState) -> None:
        """Record the released version and the one being published."""
        mapping = {"current": _text(state.current), "updating": _text(state.updating)}
        await self.client.hset(self.keys.weights, mapping=mapping)

    @_available
    async def inflight_add(self, turn_id: str, start_ms: int) -> None:
        """A request is being answered."""
        pipe = self.client.pipeline(transaction=False)
        pipe.zadd(self.keys.inflight, {turn_id: start_ms})
        pipe.zremrangebyscore(self.keys.inflight, "-inf", start_ms - INFLIGHT_MAX_AGE_MS)
        await pipe.execute()

    @_available
    async def inflight_remove(self, turn_id: str) -> None:
        """It is answered."""
        await self.client.zrem(self.keys.inflight, turn_id)

    @_available
    async def inflight_oldest(self, newer_than_ms: int) -> int | None:
        """Arrival of the oldest request still being answered that arrived after ``newer_than_ms``."""
        found = await self.client.zrangebyscore(
            self.keys.inflight, newer_than_ms, "+inf", start=0, num=1, withscores=True
        )
        return int(found[0][1]) if found else None

    @_available
    async def acquire_lease(self, owner: str, lease_ms: int) -> int | None:
        """Become (or stay) the active linker: the fencing token, or ``None`` while another holds the lease."""
        token = int(await self._lease(keys=[self.keys.linker_lease, self.keys.fence], args=[owner, lease_ms]))
        return token or None

    @_available
    async def remove_idle_consumers(self, stream: Stream, idle_ms: int) -> int:
        """Remove consumers of the stream's group that hold nothing and were silent for ``idle_ms``."""
        return int(await self._remove_idle(keys=[self.keys.stream(stream)], args=[stream.group, idle_ms]))

    @_available
    async def set_status(self, service: str, fields: dict[str, str]) -> None:
        """Write what a service says about itself."""
        await self.client.hset(self.keys.status(service), mapping=fields)

    @_available
    async def get_status(self, service: str) -> dict[str, str]:
        """Read what a service says about itself."""
        found = await self.client.hgetall(self.keys.status(service))
        return {k.decode(): v.decode() for k, v in found.items()}

    @_available
    async def durability_problems(self) -> list[str]:
        """What in Redis' own settings could lose messages, each with its fix; empty when nothing could."""
        problems = []
        policy = (await self.client.config_get("maxmemory-policy")).get("maxmemory-policy")
        if policy != "noeviction":
            problems.append(f"maxmemory-policy is {policy!r}: streams could be evicted; set it to noeviction")
        if (await self.client.config_get("appendonly")).get("appendonly") != "yes":
            problems.append("appendonly is off: a restart loses every stream; set appendonly yes")
        return problems

    @_available
    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()


def _text(value: int | None) -> str:
    return "" if value is None else str(value)
