"""The policy engines behind the proxy: which one answers next, one shared client, what headers travel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import structlog
from yarl import URL

from hintloop_rollout_proxy.asgi import RawHeaders
from hintloop_rollout_proxy.engine_http import EngineClient, EngineReply, Sink, is_plain
from hintloop_rollout_proxy.errors import EngineUnreachableError, said

#: Below the 5 s after which the engines' servers close an idle connection, so that none is used as it closes.
KEEPALIVE_S = 3.0
CONNECT_TIMEOUT_S = 10.0

#: Headers that belong to one connection (RFC 9110, 7.6.1), or that the client library writes itself.
HOP_HEADERS = frozenset(
    (
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
#: Answers are read on their way, so the engine must not compress them.
NOT_FORWARDED = HOP_HEADERS | {b"accept-encoding"}
KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key"))

log = structlog.get_logger()


@dataclass(eq=False, slots=True)
class Engine:
    """One policy engine worker and what is known of it. ``model`` is the name under which it serves."""

    url: str
    in_flight: int = 0
    healthy: bool = False
    model: str | None = None
    behaviour_space: str | None = None
    fingerprint: str | None = None
    """Its ``system_fingerprint``, where it has one."""
    wants_mended: bool = False
    """Whether it rejected a chat's form that ``asking.mend`` changes, and took the other."""
    defaults_neutral: bool = False
    """Whether a sampling parameter that is left out is known to mean temperature 1 without truncation."""
    adapters: frozenset[str] = frozenset()
    """Names of the adapters that it serves beside the model."""


def request_headers(headers: Iterable[tuple[bytes, bytes]], engine_key: str | None) -> list[tuple[str, str]]:
    """Headers for the engine. With ``engine_key`` (may be empty) the client's key ends here; ``None`` passes it on."""
    skip = NOT_FORWARDED if engine_key is None else NOT_FORWARDED | KEY_HEADERS
    out = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name not in skip]
    out.append(("accept-encoding", "identity"))
    if engine_key:
        out.append(("authorization", f"Bearer {engine_key}"))
    return out


def answer_headers(response: EngineAnswer | aiohttp.ClientResponse) -> RawHeaders:
    """The engine's headers that go on to the client."""
    return [(name.lower(), value) for name, value in response.raw_headers if name.lower() not in HOP_HEADERS]


class EngineAnswer(Protocol):
    """An engine's answer on its way, whichever client asked. Reading raises ``aiohttp.ClientError``."""

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Headers as they came."""
        ...

    def header(self, name: bytes) -> bytes:
        """The first header called ``name`` (lower case), or nothing."""
        ...

    async def read(self) -> bytes:
        """The whole body."""
        ...

    async def pour(self, sink: Sink) -> bool:
        """Give the body to ``sink`` block by block as it comes; true at its end, false once ``sink`` is."""
        ...


class GeneralAnswer:
    """An answer that aiohttp gave."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        """Read ``response``."""
        self.status, self.raw_headers = response.status, response.raw_headers
        self.read = response.read
        self._response = response

    def header(self, name: bytes) -> bytes:
        """The first header called ``name``, or nothing."""
        return self._response.headers.get(name.decode(), "").encode("latin-1")

    async def pour(self, sink: Sink) -> bool:
        """Give the body to ``sink`` block by block as it comes; true at its end, false once ``sink`` is."""
        while block := await self._response.content.readany():
            if not sink(block):
                return False
        return True


class EnginePool:
    """Chooses among the engines by least requests in flight. What generates goes over lean connections where the
    engine's address allows it, all else through one shared session."""

    def __init__(self, urls: Sequence[str], session: aiohttp.ClientSession) -> None:
        """Serve from the workers at ``urls`` through ``session``."""
        self.engines = [Engine(url) for url in urls]
        self.session = session
        self._turn = 0
        self._clients = {url: EngineClient(url, KEEPALIVE_S, CONNECT_TIMEOUT_S) for url in urls if is_plain(url)}

    def ordered(self) -> list[Engine]:
        """Engines in the order in which to try them: healthy first, then least in flight, ties in turn."""
        count = len(self.engines)
        if count == 1:
            return [*self.engines]
        self._turn += 1
        rotated = [self.engines[(self._turn + offset) % count] for offset in range(count)]
        return sorted(rotated, key=lambda engine: (not engine.healthy, engine.in_flight))

    @asynccontextmanager
    async def ask(
        self, engine: Engine, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> AsyncIterator[EngineAnswer]:
        """Post one generating request to one engine; an answer that was not read to its end is aborted.

        Raises:
            EngineUnreachableError: no connection, or it broke before an answer began.
        """
        client = self._clients.get(engine.url)
        if client is None:
            async with self.request(engine, "POST", path, headers, body) as response:
                yield GeneralAnswer(response)
            return
        engine.in_flight += 1
        try:
            reply = await self._post(engine, client, path, headers, body)
            try:
                yield reply
            finally:
                client.release(reply)
        finally:
            engine.in_flight -= 1

    async def _post(
        self, engine: Engine, client: EngineClient, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> EngineReply:
        try:
            try:
                return await client.post(path, headers, body, fresh=False)
            except aiohttp.ServerDisconnectedError:
                # A kept connection can close just as it is used again; a fresh one cannot.
                return await client.post(path, headers, body, fresh=True)
        except aiohttp.ServerDisconnectedError as error:
            raise EngineUnreachableError(f"policy engine {engine.url} closed the connection") from error
        except aiohttp.ClientError as error:
            raise EngineUnreachableError(f"policy engine {engine.url} failed: {said(error)}") from error
        except (OSError, TimeoutError) as error:
            engine.healthy = False
            raise EngineUnreachableError(f"policy engine {engine.url} cannot be reached: {said(error)}") from error

    def close(self) -> None:
        """Close the kept connections; the session is closed by whoever made it."""
        for client in self._clients.values():
            client.close()

    @asynccontextmanager
    async def request(
        self, engine: Engine, method: str, path: str, headers: list[tuple[str, str]], body: bytes | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request to one engine; the response is closed at the end, which makes the engine abort it.

        Raises:
            EngineUnreachableError: no connection, or it broke before an answer began.
        """
        engine.in_flight += 1
        try:
            response = await self._send(engine, method, path, headers, body)
            try:
                yield response
            finally:
                response.release() if response.content.at_eof() else response.close()
        finally:
            engine.in_flight -= 1

    async def _send(
        self, engine: Engine, method: str, path: str, headers: list[tuple[str, str]], body: bytes | None
    ) -> aiohttp.ClientResponse:
        for attempt in (0, 1):
            try:
                return await self.session.request(
                    method,
                    URL(engine.url + path, encoded=True),
                    headers=headers,
                    data=body,
                    skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
                    allow_redirects=False,
                )
            except aiohttp.ClientConnectorError as error:
                engine.healthy = False
                raise EngineUnreachableError(f"policy engine {engine.url} cannot be reached: {said(error)}") from error
            except (aiohttp.ServerDisconnectedError, ConnectionResetError) as error:
                # A kept connection can close just as it is used again; a fresh one cannot.
                if attempt:
                    raise EngineUnreachableError(f"policy engine {engine.url} closed the connection") from error
            except (aiohttp.ClientError, TimeoutError) as error:
                raise EngineUnreachableError(f"policy engine {engine.url} failed: {said(error)}") from error
        raise AssertionError("unreachable")


def make_session() -> aiohttp.ClientSession:
    """The one client session: no total timeout (answers have their own limit), no compression, no cookies."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, force_close=False)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )
