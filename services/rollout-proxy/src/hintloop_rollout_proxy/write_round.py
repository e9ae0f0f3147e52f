"""Writes to sockets at the end of a round of the event loop: what a round makes for one connection goes out as one.

Each write is a system call that wakes whoever reads. Made one by one, between reading and rewriting other answers, they
cost more time than the rewriting, most of it because each finds its code and data gone from the processor's caches;
and uvicorn writes the head of an answer apart from its body. A write waits for what else the round does, no longer.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class WriteRound:
    """What is written when the round ends, by connection in the order of first writes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the rounds of ``loop``."""
        self._loop = loop
        self._waiting: list[RoundTransport] = []

    def add(self, transport: RoundTransport) -> None:
        """``transport`` has something to write."""
        if not self._waiting:
            self._loop.call_soon(self._end)
        self._waiting.append(transport)

    def _end(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport in waiting:
            transport.flush()


class RoundTransport:
    """A transport that writes when a round ends. All else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, round_: WriteRound) -> None:
        """Write to ``transport``."""
        self._transport, self._round = transport, round_
        self._parts: list[bytes] = []
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        """All else is the transport's own."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write when the round ends."""
        if not self._parts:
            self._round.add(self)
        self._parts.append(data)

    def flush(self) -> None:
        """Write now."""
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        """Write what waits, and close."""
        self.flush()
        self._transport.close()


def round_protocol(round_: WriteRound) -> type[HttpToolsProtocol]:
    """uvicorn's protocol, whose answers are written by ``round_``."""

    class RoundProtocol(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(cast(asyncio.Transport, RoundTransport(transport, round_)))

    return RoundProtocol
