"""The little of ASGI that the hot path needs: read a body, send an answer, notice that the client went away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from hintloop_rollout_proxy.errors import ClientGoneError, RefusedError, RequestTooLargeError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
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


class DisconnectWatch:
    """Cancels the task that answers as soon as the client is gone, so that the engine stops generating.

    ``gone`` tells that cancellation apart from one that comes from outside.
    """

    def __init__(self, receive: Receive) -> None:
        """Watch ``receive``, whose body has been read."""
        self.gone = False
        self._receive = receive
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._begin: asyncio.TimerHandle | None = None

    def __enter__(self) -> DisconnectWatch:
        """Start watching on behalf of the current task."""
        self._task = asyncio.current_task()
        self._begin = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._start)
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop watching."""
        if self._begin is not None:
            self._begin.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        self._task = None

    def _start(self) -> None:
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._task is not None:
            self._task.cancel()
