"""Writes captures to Redis in order: one task behind a bounded queue, the disk spool while Redis is away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Capture
from hintloop_contract.streams import CAPTURES

from hintloop_rollout_proxy.flight import InFlight
from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.spool import Spool
from hintloop_rollout_proxy.versions import VersionView, newest_of

QUEUE_LENGTH = 1024
BATCH = 64
RETRY_S = 0.5
#: Seconds that a Redis which was away gets to answer before new captures go to disk too.
REACH_S = 2.0
#: Seconds that a clean exit gives Redis before what is left goes to disk.
DRAIN_S = 5.0
#: Seconds until a spool that could not be read is read again.
REPLAY_RETRY_S = 10.0

log = structlog.get_logger()


class Parcel(msgspec.Struct, frozen=True):
    """A capture with what belongs beside it in the stream entry."""

    capture: Capture
    traceparent: str = ""


_decoder = msgspec.msgpack.Decoder(Parcel)


class CaptureWriter:
    """Nothing that was put is lost, but for a full spool and a capture that cannot be encoded, both counted and logged.

    While neither Redis nor the spool takes them, captures wait in memory; the queue is bounded.
    """

    def __init__(
        self, broker: Broker, spool: Spool, versions: VersionView, flight: InFlight, metrics: ProxyMetrics
    ) -> None:
        """``spool`` is opened by :meth:`open`."""
        self._broker = broker
        self._spool = spool
        self._versions = versions
        self._flight = flight
        self._metrics = metrics
        self._queue: asyncio.Queue[Parcel] = asyncio.Queue(QUEUE_LENGTH)
        self._batch: deque[Parcel] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._newest = 0
        self._replay_at = 0.0

    def open(self) -> None:
        """Take the spool; raises ``SpoolError``."""
        self._spool.open()
        self._metrics.spool_bytes.set(self._spool.num_bytes)

    async def put(self, parcel: Parcel) -> None:
        """Hand a capture over; waits while the queue is full. The client has its answer by then."""
        await self._queue.put(parcel)
        self._metrics.queue.set(self._queue.qsize())
        self._wake.set()

    def close(self) -> None:
        """Ask :meth:`run` to drain and end."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Write until :meth:`close`, then drain: to Redis for a moment, to disk what is left."""
        while not (self._closing and self._queue.empty() and not self._batch):
            await self._take()
            limit_s = DRAIN_S if self._closing else REACH_S if not self._spool.empty else None
            try:
                await asyncio.wait_for(self._reach(), limit_s)
                await self._deliver()
            except (DependencyError, TimeoutError) as error:
                if self._batch:
                    log.warning("captures wait on disk", error=str(error) or "timed out", num=len(self._batch))
                    await self._keep()
                if not self._closing:
                    await asyncio.sleep(RETRY_S)
        await self._close_spool()

    async def rescue(self) -> None:
        """After :meth:`run` failed: leave what was put on disk, for the next start."""
        self._closing = True
        while not self._queue.empty():
            self._batch.append(self._queue.get_nowait())
        if self._batch:
            await self._keep()
        await self._close_spool()

    async def _close_spool(self) -> None:
        try:
            await asyncio.to_thread(self._spool.close)
        except OSError as error:
            self._spool_failed(error)

    async def _take(self) -> None:
        if self._queue.empty() and not self._closing:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), None if self._spool.empty else RETRY_S)
        while not self._queue.empty() and len(self._batch) < BATCH:
            self._batch.append(self._queue.get_nowait())
        self._metrics.queue.set(self._queue.qsize())

    async def _reach(self) -> None:
        """Ask which versions these answers may have seen; fails when Redis is away."""
        if self._batch or not self._spool.empty:
            self._newest = newest_of(await self._versions.read())

    async def _deliver(self) -> None:
        if not self._spool.empty and time.monotonic() >= self._replay_at:
            try:
                await self._replay()
            except OSError as error:
                # What cannot be read now must not hold up what is there.
                self._spool_failed(error)
                self._replay_at = time.monotonic() + REPLAY_RETRY_S
        while self._batch:
            await self._append(self._batch[0])
            self._batch.popleft()

    async def _append(self, parcel: Parcel) -> None:
        capture = parcel.capture
        if capture.version_newest is None:
            newest = max(self._newest, capture.version_oldest or 0)
            capture = msgspec.structs.replace(capture, version_newest=newest)
        try:
            await self._broker.append(CAPTURES, capture, tenant=capture.tenant, traceparent=parcel.traceparent)
        except DependencyError:
            raise
        except Exception as error:  # noqa: BLE001 - one capture, whatever is wrong with it
            self._lose(capture.turn_id, error)
        self._flight.end(capture.turn_id)

    def _lose(self, turn_id: str, error: Exception) -> None:
        """Say that a capture cannot be written anywhere; those behind it can."""
        self._metrics.lost.labels("unencodable").inc()
        log.error("capture lost", turn_id=turn_id, error=repr(error))

    def _spool_failed(self, error: OSError) -> None:
        self._metrics.spool_away.inc()
        log.error("spool away; check proxy.spool_dir and its disk", error=str(error))

    async def _replay(self) -> None:
        """Append what waits on disk, oldest first. Redis was away as long, so no version was published meanwhile
        that the first reading after its return does not show."""
        await asyncio.to_thread(self._spool.seal)
        for segment in await asyncio.to_thread(self._spool.segments):
            records, num_torn = await asyncio.to_thread(self._records, segment)
            if num_torn:
                self._metrics.spool_torn.inc(num_torn)
                log.warning("spool segment ends in an unfinished record", segment=segment.name)
            undecodable = 0
            for record in records:
                undecodable += not await self._append_record(record)
            await self._leave(segment, undecodable)
            self._metrics.spool_bytes.set(self._spool.num_bytes)
            log.info("spooled captures replayed", num=len(records) - undecodable, segment=segment.name)

    async def _append_record(self, record: bytes) -> bool:
        """Append one spooled capture; false when it cannot be decoded."""
        try:
            parcel = _decoder.decode(record)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._metrics.spool_undecodable.inc()
            log.error("spooled record cannot be decoded", error=repr(error))
            return False
        await self._append(parcel)
        return True

    async def _leave(self, segment: Path, undecodable: int) -> None:
        if not undecodable:
            await asyncio.to_thread(self._spool.remove, segment)
            return
        aside = await asyncio.to_thread(self._spool.set_aside, segment)
        log.error("spool segment set aside", path=str(aside), undecodable=undecodable)

    def _records(self, segment: Path) -> tuple[list[bytes], int]:
        torn_before = self._spool.num_torn
        return list(self._spool.read(segment)), self._spool.num_torn - torn_before

    async def _keep(self) -> None:
        """Write what waits to disk. While the disk is away too it waits in memory, or is lost at the exit."""
        parcels, records = self._encode_batch()
        try:
            taken = await asyncio.to_thread(self._spool.append, records)
        except OSError as error:
            self._spool_failed(error)
            if not self._closing:
                self._batch.extend(parcels)
                return
            self._lose_all(parcels, "spool_away")
            return
        self._metrics.spooled.inc(taken)
        self._metrics.spool_bytes.set(self._spool.num_bytes)
        self._lose_all(parcels[taken:], "spool_full")

    def _encode_batch(self) -> tuple[list[Parcel], list[bytes]]:
        parcels, records = [], []
        for parcel in self._batch:
            try:
                records.append(msgspec.msgpack.encode(parcel))
                parcels.append(parcel)
            except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
                self._lose(parcel.capture.turn_id, error)
                self._flight.end(parcel.capture.turn_id)
        self._batch.clear()
        return parcels, records

    def _lose_all(self, parcels: Sequence[Parcel], cause: str) -> None:
        if not parcels:
            return
        self._metrics.lost.labels(cause).inc(len(parcels))
        log.error("captures lost; raise proxy.spool_max_bytes or mend its disk", num=len(parcels), cause=cause)
        for parcel in parcels:
            self._flight.end(parcel.capture.turn_id)
