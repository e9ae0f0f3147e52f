"""Writes captures to Redis in order: one task behind a bounded queue, the disk spool while Redis is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from pathlib import Path

import msgspec
import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.errors import DependencyError, HintloopError, MessageError
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

log = structlog.get_logger()


class Parcel(msgspec.Struct, frozen=True):
    """A capture with what belongs beside it in the stream entry."""

    capture: Capture
    traceparent: str = ""


_decoder = msgspec.msgpack.Decoder(Parcel)


class CaptureWriter:
    """Nothing that was put is lost, but for a full spool, which is counted and logged."""

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
        await asyncio.to_thread(self._spool.close)

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
        if not self._spool.empty:
            await self._replay()
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
        except (MessageError, HintloopError) as error:
            self._metrics.lost.labels("unencodable").inc()
            log.error("capture lost", turn_id=capture.turn_id, error=str(error))
        self._flight.end(capture.turn_id)

    async def _replay(self) -> None:
        """Append what waits on disk, oldest first. Redis was away as long, so no version was published meanwhile
        that the first reading after its return does not show."""
        await asyncio.to_thread(self._spool.seal)
        for segment in await asyncio.to_thread(self._spool.segments):
            records = await asyncio.to_thread(self._records, segment)
            for record in records:
                await self._append(_decoder.decode(record))
            await asyncio.to_thread(self._spool.remove, segment)
            self._metrics.spool_bytes.set(self._spool.num_bytes)
            log.info("spooled captures replayed", num=len(records), segment=segment.name)

    def _records(self, segment: Path) -> list[bytes]:
        return list(self._spool.read(segment))

    async def _keep(self) -> None:
        parcels = list(self._batch)
        self._batch.clear()
        records = [msgspec.msgpack.encode(parcel) for parcel in parcels]
        taken = 0
        try:
            taken = await asyncio.to_thread(self._spool.append, records)
        except OSError as error:
            log.error("spool cannot be written", error=str(error))
        self._metrics.spooled.inc(taken)
        self._metrics.spool_bytes.set(self._spool.num_bytes)
        lost = parcels[taken:]
        if lost:
            self._metrics.lost.labels("spool_full").inc(len(lost))
            log.error("captures lost, the spool takes no more; raise proxy.spool_max_bytes", num=len(lost))
            for parcel in lost:
                self._flight.end(parcel.capture.turn_id)
