"""Reads the history into the database for as long as the console runs. Owns patience with Redis, and its cursor."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.errors import DependencyError

from hintloop_console.errors import StoreError
from hintloop_console.store import is_damage
from hintloop_console.telling import Teller

AT_ONCE = 64
BLOCK_MS = 1000
MAX_BACKOFF_S = 5.0


class Reader:
    """Follows the history. Each portion is applied in one transaction with the cursor behind it: none twice, none lost.

    What went over the history's bounds before it was read is lost for the console, and for nobody else.
    """

    def __init__(self, broker: Broker, teller: Teller) -> None:
        """Read from ``broker``, tell ``teller``."""
        self._broker, self._teller = broker, teller
        self._log = structlog.get_logger()
        self._changed = asyncio.Event()
        self.away: str | None = "not read yet"
        """Why nothing is read, or ``None``."""
        self.num_read = 0
        self.num_unreadable = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Read until ``stop``."""
        attempt, cursor = 0, None
        while not stop.is_set():
            try:
                if await asyncio.to_thread(self._teller.mended):
                    cursor = None
                if cursor is None:
                    cursor = await self._start()
                cursor = await self._portion(cursor)
                attempt = 0
            except (DependencyError, StoreError, sqlite3.DatabaseError) as error:
                # A full disk is waited for like a Redis that is away: nothing was applied, and it is read again.
                detail = error.detail if isinstance(error, DependencyError) else f"database: {error}"
                if attempt == 0:
                    self._log.warning("history waits", detail=detail)
                self.away, cursor, attempt = detail, None, attempt + 1
                if isinstance(error, sqlite3.DatabaseError) and is_damage(error):
                    continue
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), min(MAX_BACKOFF_S, 0.25 * 2**attempt))

    async def _start(self) -> str:
        cursor = await asyncio.to_thread(self._teller.cursor)
        newest = (await self._broker.history_state()).newest_id
        if _place(newest) < _place(cursor):
            # Redis came back with less than was read from it: what comes now may have smaller ids.
            self._log.warning("history begins anew", cursor=cursor, newest=newest)
            await asyncio.to_thread(self._teller.rewind)
            return "0-0"
        return cursor

    async def _portion(self, cursor: str) -> str:
        entries = await self._broker.history(cursor, AT_ONCE, BLOCK_MS)
        self.away = None
        if not entries:
            return cursor
        for entry in entries:
            if entry.message is None:
                self.num_unreadable += 1
                self._log.warning("history entry left out", entry=entry.entry_id, kind=entry.kind, detail=entry.problem)
        await asyncio.to_thread(self._teller.apply, entries)
        self.num_read += len(entries)
        self._tell()
        return entries[-1].entry_id

    @property
    def next_change(self) -> asyncio.Event:
        """Set by the next change. Take it before looking at the database, or a change in between is missed."""
        return self._changed

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _place(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)
