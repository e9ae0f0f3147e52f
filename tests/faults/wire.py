"""A wire between a service and an engine: passes everything on byte for byte, unless a fault changes it.

A change sees a request before it is sent (it may alter or answer it), and a JSON reply before it is given back.
Streams are never read. Knows no engine; what a score looks like stands in `scores`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from aiohttp import web

from .background import Background

#: Headers that belong to one connection, or to bytes that are written anew.
OWN_HEADERS = {"host", "content-length", "transfer-encoding", "connection", "content-encoding", "date", "server"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. ``body`` is decoded JSON, ``None`` when there is none."""

    method: str
    path: str
    query: str = ""
    body: Any = None


@dataclass(frozen=True, slots=True)
class Reply:
    """One JSON reply."""

    status: int
    body: Any


#: Alters a request (gives it back), answers it (gives a reply), or leaves it (gives ``None``).
Before = Callable[[Asked], Awaitable[Asked | Reply | None]]
#: Alters a reply, given what the caller asked; ``None`` leaves it.
After = Callable[[Asked, Reply], Reply | None]


async def leave(asked: Asked) -> None:
    """Pass on."""


def keep(asked: Asked, reply: Reply) -> None:
    """Give back as it came."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a fault does on a wire."""

    before: Before = leave
    after: After = keep


@dataclass
class Wire:
    """One address that stands for ``target``; ``seen`` counts requests by path."""

    background: Background
    target: str
    url: str = ""
    seen: dict[str, int] = field(default_factory=dict)
    _changes: list[Change] = field(default_factory=list)
    _session: aiohttp.ClientSession | None = None
    _runner: web.AppRunner | None = None

    def __enter__(self) -> Wire:
        app = web.Application(client_max_size=256 * 1024**2)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self.url, self._runner = self.background.serve(app)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._runner is not None
        self.background.end(self._runner)
        if self._session is not None:
            self.background.run(self._session.close())

    @contextmanager
    def changed(self, *changes: Change) -> Iterator[None]:
        """Let these changes act meanwhile, the first one nearest to the caller."""
        self._changes = [*self._changes, *changes]
        try:
            yield
        finally:
            self._changes = [change for change in self._changes if change not in changes]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        asked = Asked(request.method, request.path, request.query_string, _json(data))
        self.seen[request.path] = self.seen.get(request.path, 0) + 1
        given, sent = [], asked
        for change in tuple(self._changes):
            told = await change.before(sent)
            if isinstance(told, Reply):
                return _given_back(_undone(given, told))
            given.append((change, sent))
            sent = told or sent
        if sent.body is not asked.body:
            data = json.dumps(sent.body).encode()
        return await self._forward(request, sent, data, given)

    async def _forward(
        self, request: web.Request, sent: Asked, data: bytes, given: list[tuple[Change, Asked]]
    ) -> web.StreamResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None))
        url = f"{self.target}{sent.path}{'?' + sent.query if sent.query else ''}"
        headers = {name: value for name, value in request.headers.items() if name.lower() not in OWN_HEADERS}
        try:
            async with self._session.request(sent.method, url, data=data or None, headers=headers) as response:
                kept = {name: value for name, value in response.headers.items() if name.lower() not in OWN_HEADERS}
                acts = any(change.after is not keep for change, _ in given)
                if acts and response.content_type == "application/json":
                    reply = Reply(response.status, _json(await response.read()))
                    return _given_back(_undone(given, reply))
                passed = web.StreamResponse(status=response.status, headers=kept)
                await passed.prepare(request)
                async for block in response.content.iter_any():
                    await passed.write(block)
                await passed.write_eof()
                return passed
        except aiohttp.ClientConnectionError as error:
            return web.json_response({"error": {"message": f"{type(error).__name__}"}}, status=502)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return None


def _undone(given: list[tuple[Change, Asked]], reply: Reply) -> Reply:
    """The reply as the caller of the first change sees it."""
    for change, asked in reversed(given):
        reply = change.after(asked, reply) or reply
    return reply


def _given_back(reply: Reply) -> web.Response:
    return web.json_response(reply.body, status=reply.status)


def refusing(path: str, status: int, message: str, when: Callable[[Any], bool] = lambda body: True) -> Change:
    """Answer requests to ``path`` with an error as an OpenAI-compatible server writes it."""

    async def before(asked: Asked) -> Reply | None:
        if asked.path != path or not when(asked.body):
            return None
        return Reply(status, {"error": {"message": message, "type": "invalid_request_error", "code": status}})

    return Change(before=before)


def answering(path: str, body: Any, status: int = 200) -> Change:
    """Answer requests to ``path`` without asking anyone."""

    async def before(asked: Asked) -> Reply | None:
        return Reply(status, body) if asked.path == path else None

    return Change(before=before)


def rewriting(path: str, rewrite: Callable[[Any, Any], Any], when: Callable[[Any], bool] = lambda body: True) -> Change:
    """Give back ``rewrite(asked, replied)`` instead of what ``path`` replied with 200."""

    def after(asked: Asked, reply: Reply) -> Reply | None:
        if asked.path != path or reply.status != 200 or not when(asked.body):
            return None
        return replace(reply, body=rewrite(asked.body, reply.body))

    return Change(after=after)
