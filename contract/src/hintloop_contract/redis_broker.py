"""The broker on Redis 6.2 or newer. Owns the translation of stream operations to commands; rules stand in `broker`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from hintloop_contract import scripts
from hintloop_contract.broker import RELEASED, Appended, Entry, Holder, StreamCounts, WeightsState
from hintloop_contract.codec import FIELDS, PackedMessage, decode_fields, encode_payload, field_values, pack_message
from hintloop_contract.errors import MessageError
from hintloop_contract.history import HistoryBounds
from hintloop_contract.messages import DeadLetter, Drop, DropReason, Message, TurnRecord
from hintloop_contract.redis_connection import available, connect
from hintloop_contract.redis_dead import RedisDead
from hintloop_contract.redis_diagnosis import RedisDiagnosis
from hintloop_contract.redis_history import RedisHistory
from hintloop_contract.redis_state import RedisState, text_of
from hintloop_contract.streams import DEAD, DROPS, JUDGED, SAMPLES, STREAMS, TURNS, Stream

__all__ = ["RedisBroker", "connect"]

SEEN_TTL_S = 604_800
DROPS_MAX_AGE_MS = 7 * 24 * 3600 * 1000
#: Idle time given to a released message, so that any claim takes it.
RELEASED_IDLE_MS = 24 * 3600 * 1000


class RedisBroker(RedisState, RedisDead, RedisDiagnosis, RedisHistory):
    """`Broker` over a ``redis.asyncio`` client. See `broker.Broker` for what each method promises."""

    def __init__(
        self, client: Any, policy: str, *, turn_retention_s: int = 3600, history: HistoryBounds | None = None
    ) -> None:
        """Use ``client`` for ``policy``.

        A turn's record stays ``turn_retention_s`` seconds after its end; hops are noted within ``history``'s bounds,
        not at all without.
        """
        super().__init__(client, policy)
        RedisHistory.__init__(self, client, history)
        self._retention_s = turn_retention_s
        self._introduced: set[tuple[str, str]] = set()
        self._append = client.register_script(scripts.APPEND)
        self._append_many = client.register_script(scripts.APPEND_MANY)
        self._commit = client.register_script(scripts.COMMIT)
        self._drop = client.register_script(scripts.DROP)
        self._finish = client.register_script(scripts.FINISH)
        self._fail = client.register_script(scripts.FAIL)
        self._remove_idle = client.register_script(scripts.REMOVE_IDLE_CONSUMERS)

    def _attempts(self, stream: Stream) -> str:
        return self.keys.of(f"attempts:{stream.name}")

    def _fields(self, message: Message, tenant: str, traceparent: str = "") -> list[bytes]:
        values = field_values(pack_message(message, tenant=tenant, traceparent=traceparent), self.policy)
        return [part for name, value in zip(FIELDS, values, strict=True) for part in (name.encode(), value)]

    @available
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

    @available
    async def append(self, stream: Stream, message: Message, *, tenant: str = "default", traceparent: str = "") -> bool:
        """Append a message that has no input message; false when its turn id was appended before."""
        keys = [self.keys.seen(message.turn_id), self.keys.stream(stream), self.keys.funnel]
        args: list[Any] = [SEEN_TTL_S, stream.counter or "", *self._fields(message, tenant, traceparent)]
        return bool(await self._append(keys=keys, args=args))

    @available
    async def append_many(
        self, stream: Stream, batch: Sequence[PackedMessage], *, bound: int = 0, under: WeightsState | None = None
    ) -> list[Appended] | None:
        """Append in order and in one step, each guarded like :meth:`append`; none past ``bound`` entries (0: any), and
        ``None`` without appending any when the weights are no longer ``under``."""
        if not batch:
            return []
        seen = [self.keys.seen(packed.turn_id) for packed in batch]
        keys = [self.keys.stream(stream), self.keys.funnel, self.keys.weights, *seen]
        expected = ("", "", "") if under is None else ("1", text_of(under.current), text_of(under.updating))
        args: list[Any] = [SEEN_TTL_S, stream.counter or "", bound, *expected, len(FIELDS), *FIELDS]
        for packed in batch:
            args += field_values(packed, self.policy)
        return [Appended(int(result)) for result in await self._append_many(keys=keys, args=args)] or None

    @available
    async def read(self, stream: Stream, consumer: str, count: int, block_ms: int) -> list[Entry[Any]]:
        """Read up to ``count`` new messages for the stream's group."""
        return await self._read_group(stream, consumer, count, ">", block_ms)

    @available
    async def reread(self, stream: Stream, consumer: str, count: int, after: str = "0") -> list[Entry[Any]]:
        """Messages that ``consumer`` already holds, in order, after entry id ``after``."""
        return await self._read_group(stream, consumer, count, after, None)

    async def _read_group(
        self, stream: Stream, consumer: str, count: int, start: str, block_ms: int | None
    ) -> list[Entry[Any]]:
        key = self.keys.stream(stream)
        try:
            await self._introduce(stream, consumer)
            reply = await self.client.xreadgroup(stream.group, consumer, {key: start}, count=count, block=block_ms)
        except ResponseError as error:
            if "NOGROUP" not in str(error) and "requires the key to exist" not in str(error):
                raise
            await self._ensure_group(stream)
            return []
        items = [item for _, batch in reply for item in batch] if reply else []
        return await self._decode(stream, items)

    async def _introduce(self, stream: Stream, consumer: str) -> None:
        """Have ``consumer`` counted from its first look on; before 7.2, Redis lists it from its first message on."""
        if (stream.name, consumer) not in self._introduced:
            await self.client.xgroup_createconsumer(self.keys.stream(stream), stream.group, consumer)
            self._introduced.add((stream.name, consumer))

    @available
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

    @available
    async def renew(self, stream: Stream, consumer: str, entry_ids: Sequence[str]) -> None:
        """Tell the others that ``consumer`` still works on these."""
        if entry_ids:
            await self._claim_known(stream, consumer, entry_ids)

    @available
    async def release(self, entry: Entry[Any]) -> None:
        """Give a held message up so that any worker can claim it at once."""
        await self._claim_known(entry.stream, RELEASED, [entry.entry_id], idle=RELEASED_IDLE_MS)

    async def _claim_known(self, stream: Stream, consumer: str, entry_ids: Sequence[str], **options: int) -> None:
        """Give entries to ``consumer``, as far as they are still there."""
        try:
            await self.client.xclaim(
                self.keys.stream(stream), stream.group, consumer, 0, list(entry_ids), justid=True, **options
            )
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            # Redis lost its data, and these with it.
            await self._ensure_group(stream)

    @available
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
            *self._history_keys,
        ]
        args: list[Any] = [
            entry.stream.group,
            entry.entry_id,
            "" if fence is None else fence,
            b"" if record is None else encode_payload(record),
            *self._history_args(out.history),
            len(steps),
            *steps,
            *self._fields(message, entry.tenant, entry.traceparent),
        ]
        return int(await self._commit(keys=keys, args=args)) == 1

    @available
    async def drop(self, entry: Entry[Any] | None, drop: Drop, *, fence: int | None = None) -> bool:
        """Acknowledge and delete ``entry`` (if any), append the drop and count it; false when already done."""
        keys, args = self._drop_call(entry, drop, fence)
        return int(await self._drop(keys=keys, args=args)) == 1

    @available
    async def drop_many(self, drops: Sequence[Drop]) -> None:
        """Append and count drops that have no input message, each guarded by its turn id, in one round trip."""
        pipe = self.client.pipeline(transaction=False)
        for drop in drops:
            keys, args = self._drop_call(None, drop, None)
            await self._drop(keys=keys, args=args, client=pipe)
        await pipe.execute()

    def _drop_call(self, entry: Entry[Any] | None, drop: Drop, fence: int | None) -> tuple[list[str], list[Any]]:
        stream = entry.stream if entry else DROPS
        keys = [
            self.keys.stream(stream),
            self.keys.stream(DROPS),
            self.keys.drop_counts,
            self.keys.turn(drop.turn_id),
            self.keys.fence,
            self._attempts(stream),
            self.keys.seen(drop.turn_id),
            *self._history_keys,
        ]
        args: list[Any] = [
            stream.group or "",
            entry.entry_id if entry else "",
            "" if fence is None else fence,
            self._retention_s,
            f"{drop.stage}:{drop.reason}",
            DROPS_MAX_AGE_MS,
            SEEN_TTL_S,
            *self._history_args(DROPS.history),
            *self._fields(drop, drop.tenant),
        ]
        return keys, args

    @available
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

    @available
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
        where = stage or stream.group or stream.name
        letter = DeadLetter(
            stream=stream.name,
            turn_id=turn_id,
            message=payload,
            error=error,
            traceback=traceback,
            attempts=max_attempts,
            stage=where,
        )
        drop = Drop(turn_id=turn_id, stage=where, reason=DropReason.DEAD, detail=error, tenant=tenant)
        keys = [
            self.keys.stream(stream),
            self._attempts(stream),
            self.keys.stream(DEAD),
            self.keys.stream(DROPS),
            self.keys.drop_counts,
            self.keys.turn(turn_id),
            *self._history_keys,
        ]
        dead_fields = self._fields(letter, tenant)
        args: list[Any] = [
            stream.group,
            entry_id,
            max_attempts,
            self._retention_s,
            f"{where}:{DropReason.DEAD}",
            *self._history_args(DROPS.history),
            len(dead_fields),
            *dead_fields,
            *self._fields(drop, tenant),
        ]
        return bool(await self._fail(keys=keys, args=args))

    @available
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

    @available
    async def holders(self, stream: Stream) -> dict[str, Holder]:
        """The consumers of the stream's group by name."""
        try:
            found = await self.client.xinfo_consumers(self.keys.stream(stream), stream.group)
        except ResponseError as error:
            if "NOGROUP" not in str(error) and "no such key" not in str(error):
                raise
            return {}
        return {
            consumer["name"].decode(): Holder(int(consumer["pending"]), int(consumer["idle"])) for consumer in found
        }

    @available
    async def untrained(self) -> int:
        """Turns let in and not yet trained: turns + judged + samples - trained but unacknowledged."""
        pipe = self.client.pipeline(transaction=True)
        for stream in (TURNS, JUDGED, SAMPLES):
            pipe.xlen(self.keys.stream(stream))
        pipe.get(self.keys.trained_pending)
        *lengths, trained = await pipe.execute()
        return max(0, sum(map(int, lengths)) - int(trained or 0))

    @available
    async def remove_idle_consumers(self, stream: Stream, idle_ms: int) -> int:
        """Remove consumers of the stream's group that hold nothing and were silent for ``idle_ms``."""
        return int(await self._remove_idle(keys=[self.keys.stream(stream)], args=[stream.group, idle_ms]))
