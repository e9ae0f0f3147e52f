"""The lean HTTP/1.1 client by which engines are asked: kept connections, one request at a time on each, no thread.

A general client costs more than all else that the proxy does to a request. This one speaks plain ``http`` to one
address and does no more than that asks for; httptools parses. Whatever else is forwarded goes through aiohttp, whose
errors this raises too. Owns connections; which engine is asked, and whether again, is `upstream`'s.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import aiohttp
import httptools

from hintloop_rollout_proxy.asgi import RawHeaders

Sink = Callable[[bytes], bool]
"""Takes a block of a body; false when it takes no more for now."""

#: Bytes of an answer that may wait to be read before the engine is made to wait.
HIGH_WATER_BYTES = 256 * 1024


class EngineReply:
    """One answer on its way."""

    __slots__ = (
        "_blocks",
        "_connection",
        "_error",
        "_paused",
        "_sink",
        "_sink_error",
        "_size",
        "_waiter",
        "done",
        "raw_headers",
        "status",
    )

    def __init__(self, connection: EngineConnection) -> None:
        """Arrives on ``connection``."""
        self.status = 0
        self.raw_headers: RawHeaders = []
        self.done = False
        self._connection = connection
        self._blocks: list[bytes] = []
        self._size = 0
        self._error: aiohttp.ClientError | None = None
        self._sink: Sink | None = None
        self._sink_error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False

    def header(self, name: bytes) -> bytes:
        """The first header called ``name`` (lower case), or nothing."""
        return next((value for key, value in self.raw_headers if key.lower() == name), b"")

    async def begun(self) -> None:
        """Wait for its head; raises ``aiohttp.ClientError``."""
        while not self.status:
            await self._more()

    async def read(self) -> bytes:
        """The whole body; raises ``aiohttp.ClientError``."""
        while not self.done:
            await self._more()
            if self._paused:
                self._resume()
        return self._take()

    async def block(self) -> bytes:
        """What came of the body since the last call, waited for if need be; nothing at its end.

        Raises ``aiohttp.ClientError``.
        """
        while not self._blocks:
            if self.done:
                return b""
            await self._more()
        return self._take()

    async def pour(self, sink: Sink) -> bool:
        """Give the body to ``sink`` block by block, out of the callback that brings each: to wake the task that waits
        here would cost as much as reading an event. True at the body's end, false once ``sink`` is: what comes after
        waits.

        Raises ``aiohttp.ClientError``, and what ``sink`` raises.
        """
        while True:
            block = await self.block() if self._blocks or self.done else None
            if block is not None:
                if not block or not sink(block):
                    return not block
                continue
            self._sink = sink
            try:
                await self._more()
            finally:
                stays, self._sink = self._sink is not None, None
            if self._sink_error is not None:
                raise self._sink_error
            if not stays:
                return False

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = waiter = self._connection.loop.create_future()
        await waiter

    def _take(self) -> bytes:
        blocks = self._blocks
        block = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        blocks.clear()
        self._size = 0
        if self._paused:
            self._resume()
        return block

    def _resume(self) -> None:
        self._paused = False
        self._connection.resume()

    def add(self, block: bytes) -> None:
        """A part of the body arrived."""
        self._blocks.append(block)
        self._size += len(block)
        if self._size > HIGH_WATER_BYTES and not self._paused:
            self._paused = True
            self._connection.pause()

    def fail(self, error: aiohttp.ClientError) -> None:
        """No more of it will come. What came before may still be read."""
        if self._error is None:
            self._error = error
        self.wake()

    def wake(self) -> None:
        """Something changed."""
        if self._sink is not None and self._blocks and self._pour_on(self._sink):
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _pour_on(self, sink: Sink) -> bool:
        """Let ``sink`` have what came; whether nobody need be woken for it."""
        try:
            if not sink(self._take()):
                self._sink = None
        except Exception as error:  # noqa: BLE001 - raised where the answer is read
            self._sink, self._sink_error = None, error
        return self._sink is not None and not self.done and self._error is None


class EngineConnection(asyncio.Protocol):
    """One connection. Its parser calls the ``on_`` methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Not connected yet."""
        self.loop = loop
        self.reply: EngineReply | None = None
        self.open = False
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._interim = False
        self._lasts = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        # uvloop's transports are none of asyncio's classes.
        self._transport, self.open = cast(asyncio.Transport, transport), True

    def ask(self, request: bytes) -> EngineReply:
        """Send one request; the connection is free again when the reply is done and was released."""
        assert self._transport is not None and self.reply is None
        self.reply = EngineReply(self)
        self._transport.write(request)
        return self.reply

    def data_received(self, data: bytes) -> None:
        """Bytes of the engine."""
        reply = self.reply
        if reply is None or reply.done:
            # Nothing was asked: what this says belongs to no request.
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close()
            reply.fail(aiohttp.ClientPayloadError(f"it is no HTTP: {error}"))
            return
        reply.wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Closed, by whichever side."""
        self.open = False
        reply = self.reply
        if reply is None or reply.done:
            return
        if not reply.status:
            reply.fail(aiohttp.ServerDisconnectedError())
        elif error is None and not reply.header(b"content-length") and not reply.header(b"transfer-encoding"):
            reply.done = True
            reply.wake()
        else:
            reply.fail(aiohttp.ClientPayloadError("the connection closed before its end"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer, or of what precedes it."""
        if self.reply is not None:
            self.reply.raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        reply, status = self.reply, int(self._parser.get_status_code())
        if reply is None:
            return
        self._interim = status < 200
        if self._interim:
            reply.raw_headers.clear()
        else:
            reply.status = status

    def on_body(self, block: bytes) -> None:
        """A part of the body."""
        if self.reply is not None:
            self.reply.add(block)

    def on_message_complete(self) -> None:
        """The answer is whole, unless it was an interim one."""
        if self.reply is not None and not self._interim:
            self.reply.done = True
            self._lasts = self._parser.should_keep_alive()

    def release(self) -> bool:
        """The reply is no longer read; whether another request may follow on this connection."""
        reply, self.reply = self.reply, None
        whole = reply is not None and reply.done and not reply._paused
        if whole and self.open and self._lasts:
            self.idle_since = time.monotonic()
            return True
        self.close()
        return False

    def close(self) -> None:
        """Close at once: an engine that still generates stops."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Let the engine wait."""
        if self._transport is not None and self.open:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Let the engine go on."""
        if self._transport is not None and self.open:
            self._transport.resume_reading()


class EngineClient:
    """Connections to one engine."""

    def __init__(self, url: str, keepalive_s: float, connect_timeout_s: float) -> None:
        """``url`` is one that :func:`is_plain` takes. An idle connection is used again for ``keepalive_s``."""
        parts = urlsplit(url)
        self._host, self._port = str(parts.hostname), parts.port or 80
        self._prefix = parts.path.rstrip("/")
        self._host_line = f"host: {parts.netloc}\r\n"
        self._keepalive_s, self._connect_timeout_s = keepalive_s, connect_timeout_s
        self._idle: deque[EngineConnection] = deque()

    async def post(self, path: str, headers: list[tuple[str, str]], body: bytes, *, fresh: bool) -> EngineReply:
        """Ask; the reply has its head. ``fresh`` uses no kept connection.

        Raises:
            OSError, TimeoutError: no connection.
            aiohttp.ServerDisconnectedError: it closed before an answer began.
            aiohttp.ClientError: what came is no answer.
        """
        connection = (None if fresh else self._take()) or await self._connect()
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        head = f"POST {self._prefix}{path} HTTP/1.1\r\n{self._host_line}{lines}content-length: {len(body)}\r\n\r\n"
        reply = connection.ask(head.encode("latin-1") + body)
        try:
            await reply.begun()
        except BaseException:
            connection.close()
            raise
        return reply

    def release(self, reply: EngineReply) -> None:
        """The reply is no longer read. One that is not whole ends its connection, and so the engine's work at it."""
        connection = reply._connection
        if connection.reply is reply and connection.release():
            self._idle.append(connection)

    def _take(self) -> EngineConnection | None:
        """The connection that was used last; those that were idle too long go."""
        oldest = time.monotonic() - self._keepalive_s
        while self._idle and (not self._idle[0].open or self._idle[0].idle_since < oldest):
            self._idle.popleft().close()
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
        return None

    async def _connect(self) -> EngineConnection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_timeout_s):
            _, connection = await loop.create_connection(lambda: EngineConnection(loop), self._host, self._port)
        return connection

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.popleft().close()


def is_plain(url: str) -> bool:
    """Whether an engine's address is plain ``http`` without a password in it."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.username is None and parts.hostname is not None
