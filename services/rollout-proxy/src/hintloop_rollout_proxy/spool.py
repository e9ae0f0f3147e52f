"""Captures on disk while Redis is away: append-only segments of checked, length-prefixed records.

Owns files and their bound; what a record means is the writer's business. All methods block; call them in a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from hintloop_rollout_proxy.errors import SpoolError

_HEADER = struct.Struct("<II")  # length, CRC-32
SEGMENT_BYTES = 16 * 1024 * 1024
SUFFIX = ".spool"
ASIDE_SUFFIX = ".undecodable"


class Spool:
    """A directory of segments, oldest first by name. One process owns it at a time."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Keep at most ``max_bytes`` under ``directory``; nothing is touched before :meth:`open`."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._segment: BinaryIO | None = None
        self._lock: BinaryIO | None = None
        self._next_number = 0
        self._num_records: dict[str, int] = {}
        self.num_bytes = 0
        self.num_torn = 0
        """Records that a crash left unfinished."""

    def open(self) -> None:
        """Take the directory and count what waits in it.

        Raises:
            SpoolError: it cannot be written, or another process holds it.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = (self._directory / "lock").open("ab")
        except OSError as error:
            raise SpoolError(f"proxy.spool_dir {self._directory} cannot be written: {error}; choose another") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise SpoolError(
                f"proxy.spool_dir {self._directory} is in use by another process; give each proxy its own"
            ) from error
        self._lock = lock
        segments = self.segments()
        self.recount()
        self._next_number = int(segments[-1].stem) + 1 if segments else 0

    def recount(self) -> None:
        """Count what is there, whoever put or removed it; raises ``OSError``."""
        segments = self.segments()
        self.num_bytes = sum(path.stat().st_size for path in segments)
        known = self._num_records
        self._num_records = {path.name: known[path.name] if path.name in known else _count(path) for path in segments}

    @property
    def num_records(self) -> int:
        """Records that wait, those of a segment counted until the whole of it is replayed."""
        return sum(self._num_records.values())

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return self.num_bytes == 0

    def segments(self) -> list[Path]:
        """Segments, oldest first."""
        return sorted(self._directory.glob(f"*{SUFFIX}"))

    def append(self, records: Sequence[bytes]) -> int:
        """Write ``records`` and fsync once; the number that fitted under the bound (a prefix of them).

        Raises:
            OSError: the disk takes nothing; some of ``records`` may have been written all the same.
        """
        try:
            return self._append(records)
        except OSError:
            # What was half written ends this segment; the next record begins another.
            segment, self._segment = self._segment, None
            if segment is not None:
                with contextlib.suppress(OSError):
                    segment.close()
            with contextlib.suppress(OSError):
                self.recount()
            raise

    def _append(self, records: Sequence[bytes]) -> int:
        taken = 0
        for record in records:
            size = _HEADER.size + len(record)
            if self.num_bytes + size > self._max_bytes:
                break
            segment = self._writable()
            segment.write(_HEADER.pack(len(record), zlib.crc32(record)))
            segment.write(record)
            self.num_bytes += size
            name = Path(segment.name).name
            self._num_records[name] = self._num_records.get(name, 0) + 1
            taken += 1
        if taken and self._segment is not None:
            self._segment.flush()
            os.fsync(self._segment.fileno())
        return taken

    def _writable(self) -> BinaryIO:
        if self._segment is not None and self._segment.tell() >= SEGMENT_BYTES:
            self.seal()
        if self._segment is None:
            path = self._directory / f"{self._next_number:010d}{SUFFIX}"
            self._next_number += 1
            self._segment = path.open("xb")
        return self._segment

    def seal(self) -> None:
        """Close the segment being written, so that it can be replayed."""
        if self._segment is not None:
            self._segment.flush()
            os.fsync(self._segment.fileno())
            self._segment.close()
            self._segment = None

    def read(self, segment: Path) -> Iterator[bytes]:
        """Records of a sealed segment. A torn one ends it, and is counted."""
        with segment.open("rb") as file:
            while header := file.read(_HEADER.size):
                if len(header) < _HEADER.size:
                    self.num_torn += 1
                    return
                length, checksum = _HEADER.unpack(header)
                record = file.read(length)
                if len(record) < length or zlib.crc32(record) != checksum:
                    self.num_torn += 1
                    return
                yield record

    def remove(self, segment: Path) -> None:
        """Delete a replayed segment."""
        self.num_bytes -= segment.stat().st_size
        self._num_records.pop(segment.name, None)
        segment.unlink()

    def set_aside(self, segment: Path) -> Path:
        """Keep a segment that cannot be replayed under another name, where it no longer counts; the new path."""
        aside = segment.with_suffix(ASIDE_SUFFIX)
        self.num_bytes -= segment.stat().st_size
        self._num_records.pop(segment.name, None)
        segment.rename(aside)
        return aside

    def close(self) -> None:
        """Seal and give the directory up."""
        self.seal()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _count(segment: Path) -> int:
    """Records of a segment by their headers alone; a torn one counts."""
    count, size = 0, segment.stat().st_size
    with segment.open("rb") as file:
        while len(header := file.read(_HEADER.size)) == _HEADER.size and file.tell() <= size:
            file.seek(_HEADER.unpack(header)[0], os.SEEK_CUR)
            count += 1
    return count
