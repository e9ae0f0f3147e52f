"""Writes captures to Redis in order: one task behind a bounded queue, the disk spool while Redis is slow or away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import structlog
from hintloop_contract.broker import Appended, Broker
from hintloop_contract.codec import PackedMessage
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Drop, DropReason, Stage
from hintloop_contract.streams import CAPTURES

from hintloop_rollout_proxy.errors import said
from hintloop_rollout_proxy.flight import InFlight
from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.parcels import UNENCODABLE, Parcel, encode_record, pack_all, weight_of
from hintloop_rollout_proxy.receipts import WAIT_S, Receipts
from hintloop_rollout_proxy.replay import SpoolReplay
from hintloop_rollout_proxy.spool import Spool
from hintloop_rollout_proxy.versions import VersionView, newest_of

__all__ = ["CaptureWriter", "Parcel"]

QUEUE_LENGTH = 1024
QUEUE_BYTES = 64 * 1024 * 1024
BATCH = 64
BATCH_BYTES = 4 * 1024 * 1024
#: A batch is complete when no capture came for so many rounds of the event loop, and at the latest after these seconds:
#: what ends at the same time shares one way to Redis, and what ends alone does not wait.
QUIET_ROUNDS = 2
GATHER_S = 0.004
#: Seconds that Redis gets to answer before captures go to disk.
CALL_S = 2.0
#: Seconds until a Redis that was away is asked again.
RETRY_S = 0.5
#: Seconds that a clean exit gives Redis before what is left goes to disk.
DRAIN_S = 5.0
#: Seconds until a spool that could not be read, or a disk that took nothing, is tried again.
SPOOL_RETRY_S = 10.0
DISK_RETRY_S = 0.5
#: Seconds that a request's connection is held up by a full queue before its capture is given up.
PUT_WAIT_S = 1.0

T = TypeVar("T")
log = structlog.get_logger()


class CaptureWriter:
    """Nothing that was put is lost silently: a capture that neither Redis nor the spool takes is counted and logged.

    While both are away captures wait in memory, in a queue that is bounded in number and bytes.
    """

    def __init__(
        self,
        broker: Broker,
        spool: Spool,
        versions: VersionView,
        flight: InFlight,
        metrics: ProxyMetrics,
        receipts: Receipts,
        max_captures: int = 0,
    ) -> None:
        """``spool`` is opened by :meth:`open`. Past ``max_captures`` in the stream (0: any) turns are dropped."""
        self._broker = broker
        self._spool = spool
        self._versions = versions
        self._flight = flight
        self._metrics = metrics
        self._receipts = receipts
        self._max_captures = max_captures
        self._replay = SpoolReplay(spool, metrics)
        self._queue: deque[Parcel] = deque()
        self._queue_bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._closing = False
        self._drain_until = 0.0
        self._redis_at = 0.0
        self._redis_failed = False
        self._replay_at = 0.0
        self._disk_at = 0.0

    def open(self) -> None:
        """Take the spool; raises ``SpoolError``."""
        self._spool.open()
        self._show_spool()

    def _show_spool(self) -> None:
        self._metrics.spool_bytes.set(self._spool.num_bytes)
        self._metrics.spool_captures.set(self._spool.num_records)

    def describe(self) -> dict[str, object]:
        """What waits to be written, for people."""
        return {
            "queued": len(self._queue),
            "spooled": self._spool.num_records,
            "spool_bytes": self._spool.num_bytes,
            "redis": "away" if self._away else "there",
        }

    async def put(self, parcel: Parcel) -> None:
        """Hand a capture over; a full queue holds its connection up for a moment."""
        if self.full and not await self._wait_for_room():
            self._lose_all([parcel], "queue_full")
            return
        self._queue.append(parcel)
        self._queue_bytes += weight_of(parcel)
        self._wake.set()

    async def _wait_for_room(self) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PUT_WAIT_S):
                while self.full:
                    self._room.clear()
                    await self._room.wait()
        return not self.full

    @property
    def full(self) -> bool:
        """Whether :meth:`put` would have to wait."""
        return len(self._queue) >= QUEUE_LENGTH or self._queue_bytes >= QUEUE_BYTES

    @property
    def _crowded(self) -> bool:
        return len(self._queue) >= QUEUE_LENGTH // 2 or self._queue_bytes >= QUEUE_BYTES // 2

    def close(self) -> None:
        """Ask :meth:`run` to drain and end."""
        self._closing = True
        self._drain_until = time.monotonic() + DRAIN_S
        self._wake.set()

    async def run(self) -> None:
        """Write until :meth:`close`, then drain: to Redis for a moment, to disk what is left."""
        while not self._drained:
            await self._wait()
            if self._away:
                await self._keep()
                continue
            try:
                # Of a Redis that is tried again, nothing is known before it answered.
                self._receipts.prompt = self._receipts.prompt and not self._redis_failed
                await self._write()
                self._redis_failed = False
            except (DependencyError, TimeoutError) as error:
                self._redis_at = time.monotonic() + (DRAIN_S if self._closing else RETRY_S)
                self._redis_failed = True
                # Now the disk takes them, if it is there.
                self._receipts.prompt = time.monotonic() >= self._disk_at
                if self._queue:
                    log.warning("captures wait on disk", error=str(error) or "timed out", num=len(self._queue))
        await self._close_spool()

    @property
    def _drained(self) -> bool:
        return self._closing and not self._queue and (self._away or not self._replayable)

    async def rescue(self) -> None:
        """After :meth:`run` failed: leave what was put on disk, for the next start."""
        self._closing = True
        await self._keep()
        await self._close_spool()

    async def _close_spool(self) -> None:
        try:
            await asyncio.to_thread(self._spool.close)
        except OSError as error:
            self._spool_failed(error)

    @property
    def _away(self) -> bool:
        """Whether Redis is not to be asked now."""
        now = time.monotonic()
        return now < self._redis_at or (self._closing and now >= self._drain_until)

    @property
    def _replayable(self) -> bool:
        return not self._spool.empty and time.monotonic() >= self._replay_at

    async def _wait(self) -> None:
        """Until there is something to do. What comes close together, or while a batch is written, goes together."""
        self._metrics.queue.set(len(self._queue))
        if self._closing:
            return
        if not self._queue:
            # Spooled captures are work too, from the moment that Redis and the disk may be asked again.
            due_s = max(self._redis_at, self._replay_at) - time.monotonic()
            if self._spool.empty or due_s > 0:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if self._spool.empty else due_s):
                        await self._wake.wait()
        if self._away and time.monotonic() < self._disk_at:
            await asyncio.sleep(min(self._redis_at, self._disk_at) - time.monotonic())
        else:
            await self._gather()

    async def _gather(self) -> None:
        """Until no capture came for some rounds of the event loop."""
        known, quiet, end = 0, 0, time.monotonic() + GATHER_S
        while quiet < QUIET_ROUNDS and len(self._queue) < BATCH and time.monotonic() < end:
            quiet = quiet + 1 if len(self._queue) == known else 0
            known = len(self._queue)
            await asyncio.sleep(0)

    async def _write(self) -> None:
        """Bring to Redis what waits longest: from disk, then from the queue. What fails stays where it was."""
        if self._replayable:
            await self._write_spooled()
            if self._replayable:
                self._receipts.prompt = False
                if self._crowded:
                    await self._keep()
                return
        batch = self._peek()
        if batch:
            await self._append(batch)
            self._remove(len(batch))

    async def _write_spooled(self) -> None:
        """Redis was away as long, so no version was published meanwhile that the first reading after its return does
        not show."""
        try:
            batch = await self._replay.next()
        except OSError as error:
            # What cannot be read now must not hold up what is there.
            self._spool_failed(error)
            self._replay_at = time.monotonic() + SPOOL_RETRY_S
            return
        if batch:
            began = time.monotonic()
            await self._append(batch)
            self._replay.settle()
            self._receipts.prompt = time.monotonic() - began < WAIT_S
        self._show_spool()

    def _peek(self) -> list[Parcel]:
        batch: list[Parcel] = []
        size = 0
        for parcel in self._queue:
            if len(batch) >= BATCH or size >= BATCH_BYTES:
                break
            batch.append(parcel)
            size += weight_of(parcel)
        return batch

    def _remove(self, count: int) -> list[Parcel]:
        removed = [self._queue.popleft() for _ in range(count)]
        self._queue_bytes -= sum(map(weight_of, removed))
        self._receipts.give(parcel.capture.turn_id for parcel in removed)
        self._room.set()
        return removed

    async def _append(self, batch: Sequence[Parcel]) -> None:
        """Append in order, stamped with the newest version that may have been in force when they ended: Redis takes
        them only while that is the one they say."""
        packed, failed, results = await self._answered(self._append_stamped(batch))
        for parcel, error in failed:
            self._lose(parcel.capture.turn_id, error)
        full = [message for message, result in zip(packed, results, strict=True) if result is Appended.FULL]
        if full:
            await self._drop(full)
        for parcel in batch:
            self._flight.end(parcel.capture.turn_id)

    async def _append_stamped(
        self, batch: Sequence[Parcel]
    ) -> tuple[list[PackedMessage], list[tuple[Parcel, Exception]], list[Appended]]:
        """What was packed, what could not be, and what became of each message."""
        state = self._versions.state
        while True:
            packed, failed = pack_all(batch, newest_of(state))
            results = await self._broker.append_many(CAPTURES, packed, bound=self._max_captures, under=state)
            if results is not None:
                return packed, failed, results
            state = await self._versions.read()

    async def _answered(self, call: Awaitable[T]) -> T:
        """The answer of Redis; raises ``TimeoutError`` when it takes so long that agents' captures would pile up."""
        limit_s = CALL_S if not self._closing else max(0.0, min(CALL_S, self._drain_until - time.monotonic()))
        async with asyncio.timeout(limit_s):
            return await call

    async def _drop(self, full: Sequence[PackedMessage]) -> None:
        detail = f"{self._max_captures} captures wait to be linked already (proxy.max_captures)"
        drops = [
            Drop(
                turn_id=message.turn_id,
                stage=str(Stage.CAPTURE),
                reason=str(DropReason.BACKPRESSURE),
                detail=detail,
                tenant=message.tenant,
            )
            for message in full
        ]
        await self._answered(self._broker.drop_many(drops))
        # They were captured, so the funnel closes.
        await self._answered(self._broker.count(str(CAPTURES.counter), len(drops)))
        self._metrics.problems.labels(str(DropReason.BACKPRESSURE)).inc(len(drops))
        log.warning("captures dropped: is a linker running?", num=len(drops), detail=detail)

    def _lose(self, turn_id: str, error: Exception) -> None:
        """Say that a capture cannot be written anywhere; those behind it can."""
        self._metrics.lost.labels("unencodable").inc()
        log.error("capture lost", turn_id=turn_id, error=said(error))

    def _spool_failed(self, error: OSError) -> None:
        self._metrics.spool_away.inc()
        log.error("spool away; check proxy.spool_dir and its disk", error=str(error))

    async def _keep(self) -> None:
        """Write what waits to disk. While the disk is away too it waits in memory, or is lost at the exit."""
        if not self._queue or (time.monotonic() < self._disk_at and not self._closing):
            return
        num_waiting = len(self._queue)
        records = self._encode(list(self._queue))
        try:
            taken = await asyncio.to_thread(self._spool.append, [record for _, record in records])
        except OSError as error:
            self._spool_failed(error)
            self._disk_at = time.monotonic() + DISK_RETRY_S
            self._receipts.prompt = False
            if self._closing:
                self._remove(num_waiting)
                self._lose_all([parcel for parcel, _ in records], "spool_away")
            return
        self._remove(num_waiting)
        self._metrics.spooled.inc(taken)
        self._show_spool()
        self._lose_all([parcel for parcel, _ in records[taken:]], "spool_full")

    def _encode(self, parcels: Sequence[Parcel]) -> list[tuple[Parcel, bytes]]:
        records = []
        for parcel in parcels:
            try:
                records.append((parcel, encode_record(parcel)))
            except UNENCODABLE as error:
                self._lose(parcel.capture.turn_id, error)
                self._flight.end(parcel.capture.turn_id)
        return records

    def _lose_all(self, parcels: Sequence[Parcel], cause: str) -> None:
        if not parcels:
            return
        self._metrics.lost.labels(cause).inc(len(parcels))
        log.error("captures lost; raise proxy.spool_max_bytes or mend its disk", num=len(parcels), cause=cause)
        for parcel in parcels:
            self._flight.end(parcel.capture.turn_id)
        self._receipts.give(parcel.capture.turn_id for parcel in parcels)
