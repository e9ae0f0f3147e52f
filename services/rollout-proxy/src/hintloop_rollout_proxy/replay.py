"""Reads spooled captures back, oldest first, in slices small enough to hold up nothing else.

A slice comes again until it is settled. Files are the spool's business, Redis is the writer's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog

from hintloop_rollout_proxy.errors import said
from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.parcels import UNDECODABLE, Parcel, decode_record
from hintloop_rollout_proxy.spool import Spool

SLICE_LENGTH = 64
SLICE_BYTES = 4 * 1024 * 1024

log = structlog.get_logger()


class SpoolReplay:
    """The one reader of a spool."""

    def __init__(self, spool: Spool, metrics: ProxyMetrics) -> None:
        """Read from ``spool``."""
        self._spool = spool
        self._metrics = metrics
        self._segment: Path | None = None
        self._records: Iterator[bytes] = iter(())
        self._slice: list[Parcel] = []
        self._torn_before = 0
        self._num_replayed = 0
        self._num_undecodable = 0

    async def next(self) -> Sequence[Parcel]:
        """The oldest captures that wait, or none; raises ``OSError``. The same ones until :meth:`settle`."""
        if not self._slice:
            await asyncio.to_thread(self._pull)
        return self._slice

    def settle(self) -> None:
        """The slice is written elsewhere."""
        self._num_replayed += len(self._slice)
        self._slice = []

    def _pull(self) -> None:
        try:
            while not self._slice and self._begin_segment():
                self._slice = self._read_slice()
                if not self._slice:
                    self._end_segment()
        except OSError:
            # The segment is read again from its start: what was appended already is not appended twice.
            self._segment = None
            raise

    def _begin_segment(self) -> bool:
        if self._segment is None:
            self._spool.seal()
            segments = self._spool.segments()
            if not segments:
                self._spool.recount()
                return False
            self._segment = segments[0]
            self._records = self._spool.read(self._segment)
            self._torn_before = self._spool.num_torn
            self._num_replayed = self._num_undecodable = 0
        return True

    def _read_slice(self) -> list[Parcel]:
        found: list[Parcel] = []
        size = 0
        for record in self._records:
            parcel = self._decode(record)
            if parcel is not None:
                found.append(parcel)
                size += len(record)
            if len(found) >= SLICE_LENGTH or size >= SLICE_BYTES:
                break
        return found

    def _decode(self, record: bytes) -> Parcel | None:
        try:
            return decode_record(record)
        except UNDECODABLE as error:
            self._num_undecodable += 1
            self._metrics.spool_undecodable.inc()
            log.error("spooled record cannot be decoded", error=said(error))
            return None

    def _end_segment(self) -> None:
        """Every record of it is written elsewhere: the segment goes, unless one could not be decoded."""
        assert self._segment is not None
        segment, self._segment = self._segment, None
        num_torn = self._spool.num_torn - self._torn_before
        if num_torn:
            self._metrics.spool_torn.inc(num_torn)
            log.warning("spool segment ends in an unfinished record", segment=segment.name)
        if self._num_undecodable:
            aside = self._spool.set_aside(segment)
            log.error("spool segment set aside", path=str(aside), undecodable=self._num_undecodable)
        else:
            self._spool.remove(segment)
        log.info("spooled captures replayed", num=self._num_replayed, segment=segment.name)
