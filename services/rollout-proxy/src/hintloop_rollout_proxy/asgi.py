"""The little of ASGI that the hot path needs: read a body, send an answer, notice that the client went away."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Iterable, MutableMapping
from typing import Any

from hintloop_rollout_proxy.errors import ClientGoneError, RefusedError, RequestTooLargeError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, Message]]
Send = Callable[[Message], Coroutine[Any, Any, None]]
App = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
RawHeaders = list[tuple[bytes, bytes]]

#: A request that is answered sooner is not worth a task that watches its client; the server remembers one that left.
WATCH_AFTER_S = 0.02

JSON_HEADERS: RawHeaders = [(b"content-type", b"application/json")]


async def read_body(receive: Receive, headers: MutableMapping[bytes, bytes], max_bytes: int) -> bytes:
    """The request's whole body.

    Raises:
        RequestTooLargeError: it is larger than ``max_bytes``.
        ClientGoneError: the client left while sending it.
    """
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large(int(declared), max_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError("the client closed the connection while sending its request")
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise too_large(size, max_bytes)
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def too_large(size: int, max_bytes: int) -> RequestTooLargeError:
    """The error for a body of ``size`` bytes."""
    return RequestTooLargeError(
        f"the request body has {size} bytes, {max_bytes} are allowed; raise proxy.max_request_bytes to accept it"
    )


async def send_start(send: Send, status: int, headers: RawHeaders) -> None:
    """Begin an answer."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_body(send: Send, body: bytes, *, more: bool = False) -> None:
    """Send (a part of) the body."""
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def send_whole(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
    """Send a whole answer with its length."""
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await beneath(send)({"type": "http.response.body", "body": body})


async def send_refusal(send: Send, error: RefusedError, path: str = "") -> None:
    """Send one of the proxy's own errors, in the form of the API at ``path``."""
    headers = [*JSON_HEADERS, (b"www-authenticate", b"Bearer")] if error.status == 401 else JSON_HEADERS
    await send_whole(send, error.status, headers, error.body(path))


class Sending:
    """A ``send`` that remembers whether the answer began."""

    def __init__(self, send: Send) -> None:
        """Send by ``send``."""
        self.started = False
        self.beneath = send

    async def __call__(self, message: Message) -> None:
        """Send one message."""
        self.started = True
        await self.beneath(message)


def beneath(send: Send) -> Send:
    """What a :class:`Sending` whose answer began sends by: there is nothing left to remember. Else ``send``."""
    return send.beneath if isinstance(send, Sending) and send.started else send


class Pushing:
    """Sends parts of a body from where nothing can be awaited.

    A server's ``send`` waits only while its client does not read. Until then it can be run to its end at once; when it
    waits, :meth:`finish` goes on with it.
    """

    def __init__(self, send: Send) -> None:
        """Send by ``send``, to which the answer's head was given."""
        self._send = send
        self._sending: Coroutine[Any, Any, None] | None = None
        self._awaited: Any = None

    def __call__(self, body: bytes) -> bool:
        """Send ``body``; false when the server waits, and takes no more until :meth:`finish` has ended."""
        sending = self._send({"type": "http.response.body", "body": body, "more_body": True})
        try:
            self._awaited = sending.send(None)
        except StopIteration:
            return True
        self._sending = sending
        return False

    @types.coroutine
    def finish(self) -> Generator[Any, None, None]:
        """Wait until the server has taken what was sent last: go on with it on behalf of the task that waits."""
        sending, self._sending = self._sending, None
        if sending is None:
            return
        try:
            while True:
                yield self._awaited
                self._awaited = sending.send(None)
        except StopIteration:
            pass
        finally:
            sending.close()


class AnswerWatch:
    """Ends what is done for a request in its block as soon as the client is gone, so that the engine stops generating,
    or when it takes too long.

    Raises out of the block:
        ClientGoneError: the client closed the connection.
        TimeoutError: the block took ``limit_s`` seconds.
    """

    # One of these is made for every request, and most end within milliseconds: `asyncio.timeout` and a task that
    # listens would cost more than all that is done for some of them.
    __slots__ = ("_cancelled_before", "_cause", "_deadline", "_listener", "_loop", "_receive", "_task", "_timer")

    def __init__(self, receive: Receive, limit_s: float) -> None:
        """Watch ``receive``, whose body has been read."""
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + limit_s
        self._task = asyncio.current_task(self._loop)
        self._cancelled_before = 0 if self._task is None else self._task.cancelling()
        self._cause: Exception | None = None
        self._listener: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> AnswerWatch:
        """Start watching on behalf of the current task."""
        self._timer = self._loop.call_at(min(self._deadline, self._loop.time() + WATCH_AFTER_S), self._start)
        return self

    def allow(self, seconds: float) -> None:
        """Leave the block at least these seconds from now."""
        self._deadline = max(self._deadline, self._loop.time() + seconds)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Stop watching. A cancellation that comes from elsewhere stays one."""
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.cancel()
        task, self._task = self._task, None
        cause, self._cause = self._cause, None
        try:
            if cause is not None and task is not None:
                alone = task.uncancel() <= self._cancelled_before
                if alone and kind is asyncio.CancelledError:
                    raise cause from None
        finally:
            # No cycle of error, traceback and frames is left behind: the collector comes seldom.
            del cause, error, trace, task

    def _start(self) -> None:
        self._expire()
        if self._cause is None:
            self._listener = self._loop.create_task(self._listen())

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end(ClientGoneError("the client closed the connection"))

    def _expire(self) -> None:
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._expire)
        else:
            self._end(TimeoutError())

    def _end(self, cause: Exception) -> None:
        if self._task is not None and self._cause is None:
            self._cause = cause
            self._task.cancel()
