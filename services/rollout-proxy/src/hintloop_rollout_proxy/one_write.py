"""The server's protocol, which sends the head of an answer together with the first of its body.

ASGI gives the two one after the other, and uvicorn writes each by itself: a system call and a packet more for every
answer. A head whose body is not there at once goes out alone, at the end of the event loop's round.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1.1 "


class JoiningTransport:
    """A transport on which what begins like a head waits for what is written next. All else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Write to ``transport``."""
        self._transport, self._loop = transport, loop
        self._head = b""
        self._flushing: asyncio.Handle | None = None
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        """All else is the transport's own."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write, now or with what comes next."""
        if self._head:
            self._transport.write(self._taken_head() + data)
        elif data.startswith(_HEAD):
            self._head = data
            self._flushing = self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Write what waits, and close."""
        self._flush()
        self._transport.close()

    def _taken_head(self) -> bytes:
        head, self._head = self._head, b""
        if self._flushing is not None:
            self._flushing.cancel()
        return head

    def _flush(self) -> None:
        head = self._taken_head()
        # A connection that was lost meanwhile takes nothing more.
        if head and not self.is_closing():
            self._transport.write(head)


class JoiningProtocol(HttpToolsProtocol):
    """uvicorn's protocol over a :class:`JoiningTransport`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Connected."""
        super().connection_made(cast(asyncio.Transport, JoiningTransport(transport, self.loop)))
