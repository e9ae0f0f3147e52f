"""The lean client against servers that speak byte for byte what a test tells them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import uvloop
from hintloop_rollout_proxy import engine_http
from hintloop_rollout_proxy.engine_http import EngineClient, EngineConnection, is_plain
from hintloop_rollout_proxy.errors import EngineUnreachableError
from hintloop_rollout_proxy.upstream import EnginePool, make_session

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"


class Server:
    """Counts connections and keeps what it was sent."""

    def __init__(self) -> None:
        self.url = ""
        self.num_connections = 0
        self.requests: list[bytes] = []
        self.gone = asyncio.Event()

    async def read_request(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        request = head + await reader.readexactly(length)
        self.requests.append(request)
        return request


@asynccontextmanager
async def serving(*answers: bytes, then: str = "wait") -> AsyncIterator[Server]:
    """A server that gives ``answers`` in turn, on whichever connection; behind the last it waits or closes."""
    server, left = Server(), list(answers)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.num_connections += 1
        try:
            while True:
                await server.read_request(reader)
                writer.write(left.pop(0) if left else b"")
                await writer.drain()
                if then == "close":
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            server.gone.set()
        finally:
            writer.close()

    listener = await asyncio.start_server(talk, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()


async def ask(client: EngineClient, body: bytes = b"{}", **options: Any) -> tuple[int, bytes]:
    reply = await client.post("/v1/x", [("a", "b")], body, fresh=options.get("fresh", False))
    try:
        return reply.status, await reply.read()
    finally:
        client.release(reply)


def client_of(server: Server, keepalive_s: float = 600.0) -> EngineClient:
    return EngineClient(server.url, keepalive_s, 60.0)


WHOLE = OK + b"content-length: 5\r\nX-Two: 1\r\nX-Two: 2\r\n\r\nhello"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\nx-no: 1\r\n\r\n"


@pytest.mark.parametrize("answer", [WHOLE, CHUNKED, INTERIM + WHOLE])
async def test_answers_are_read_and_the_connection_is_kept(answer: bytes) -> None:
    async with serving(answer, answer, answer) as server:
        client = client_of(server)
        assert [await ask(client) for _ in range(3)] == [(200, b"hello")] * 3
        assert server.num_connections == 1
        client.close()


def test_the_loop_that_the_proxy_runs_on_serves_it() -> None:
    async def twice() -> list[tuple[int, bytes]]:
        async with serving(WHOLE, CHUNKED) as server:
            client = client_of(server)
            answers = [await ask(client) for _ in range(2)]
            client.close()
            return answers

    assert uvloop.run(twice()) == [(200, b"hello")] * 2


async def test_what_is_sent_is_a_request_to_the_engines_address() -> None:
    async with serving(WHOLE) as server:
        client = EngineClient(server.url + "/base/", 3.0, 5.0)
        await ask(client, b'{"a":1}')
        host = server.url.removeprefix("http://").encode()
        expected = b"POST /base/v1/x HTTP/1.1\r\nhost: " + host + b"\r\na: b\r\ncontent-length: 7\r\n\r\n" + b'{"a":1}'
        assert server.requests == [expected]
        client.close()


async def test_headers_come_as_they_were_sent() -> None:
    async with serving(INTERIM + WHOLE) as server:
        client = client_of(server)
        reply = await client.post("/", [], b"", fresh=False)
        assert reply.raw_headers == [(b"content-length", b"5"), (b"X-Two", b"1"), (b"X-Two", b"2")]
        assert (reply.header(b"x-two"), reply.header(b"absent")) == (b"1", b"")
        client.release(reply)


async def test_a_body_may_end_with_the_connection() -> None:
    async with serving(OK + b"\r\nhello", then="close") as server:
        client = client_of(server)
        assert await ask(client) == (200, b"hello")
        assert await_idle(client) == 0


@asynccontextmanager
async def slowly(*parts: bytes) -> AsyncIterator[Server]:
    """A server that gives one answer in ``parts``, a moment apart."""
    server = Server()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await server.read_request(reader)
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.03)
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()
            server.gone.set()

    listener = await asyncio.start_server(talk, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield server
        async with asyncio.timeout(60):
            await server.gone.wait()


def await_idle(client: EngineClient) -> int:
    return len(client._idle)


@pytest.mark.parametrize(
    "answer", [OK + b"content-length: 9\r\n\r\nhello", OK + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n"]
)
async def test_a_body_that_is_cut_is_an_error_behind_what_came(answer: bytes) -> None:
    async with serving(answer, then="close") as server:
        client = client_of(server)
        reply = await client.post("/", [], b"", fresh=False)
        seen = b""
        with pytest.raises(aiohttp.ClientPayloadError):
            while block := await reply.block():
                seen += block
        assert seen in (b"hello", b"hel")
        client.release(reply)
        assert await_idle(client) == 0


async def test_what_is_no_http_is_an_error() -> None:
    async with serving(b"hello\r\n\r\n") as server:
        with pytest.raises(aiohttp.ClientPayloadError):
            await ask(client_of(server))


async def test_no_answer_is_a_disconnect() -> None:
    async with serving(b"", then="close") as server:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await ask(client_of(server))


async def test_a_connection_that_the_engine_does_not_keep_is_not_used_again() -> None:
    last = OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello"
    async with serving(last, WHOLE) as server:
        client = client_of(server)
        assert [await ask(client) for _ in range(2)] == [(200, b"hello")] * 2
        assert server.num_connections == 2
        client.close()


async def test_an_idle_connection_gets_old() -> None:
    async with serving(WHOLE, WHOLE) as server:
        client = client_of(server, keepalive_s=0.05)
        await ask(client)
        await asyncio.sleep(0.1)
        await ask(client)
        assert server.num_connections == 2
        client.close()


async def test_an_answer_that_is_not_read_to_its_end_ends_the_connection() -> None:
    async with serving(OK + b"content-length: 50\r\n\r\nhello") as server:
        client = client_of(server)
        reply = await client.post("/", [], b"", fresh=False)
        assert await reply.block() == b"hello"
        client.release(reply)
        async with asyncio.timeout(60):
            await server.gone.wait()
        assert await_idle(client) == 0


async def test_a_cancelled_wait_ends_the_connection() -> None:
    async with serving(b"") as server:
        asking = asyncio.create_task(ask(client_of(server)))
        async with asyncio.timeout(60):
            while not server.requests:
                await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(60):
            await server.gone.wait()


async def test_a_slow_reader_makes_the_engine_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_http, "HIGH_WATER_BYTES", 10_000)
    size = 8_000_000
    async with serving(OK + b"content-length: %d\r\n\r\n" % size + b"x" * size) as server:
        client = client_of(server)
        reply = await client.post("/", [], b"", fresh=False)
        async with asyncio.timeout(60):
            while not reply._paused:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert reply._size < 2_000_000
        seen = 0
        while block := await reply.block():
            seen += len(block)
        assert seen == size
        client.release(reply)
        assert await_idle(client) == 1
        client.close()


async def test_a_body_is_poured_as_it_comes_without_waking_who_waits() -> None:
    parts = [b"%d" % number for number in range(5)]
    head = OK + b"transfer-encoding: chunked\r\n\r\n"
    async with slowly(head, *(b"1\r\n%b\r\n" % part for part in parts), b"0\r\n\r\n") as server:
        client = client_of(server)
        reply = await client.post("/", [], b"", fresh=False)
        seen: list[bytes] = []
        tasks = set()

        def take(block: bytes) -> bool:
            seen.append(block)
            tasks.add(asyncio.current_task())
            return True

        assert await reply.pour(take)
        assert b"".join(seen) == b"01234" and len(seen) > 1
        assert None in tasks  # out of the callback, in no task
        client.release(reply)
        assert await_idle(client) == 1
        client.close()


async def test_what_a_sink_does_not_take_waits() -> None:
    size = 3_000_000
    async with serving(OK + b"content-length: %d\r\n\r\n" % size + b"x" * size) as server:
        client = client_of(server)
        reply = await client.post("/", [], b"", fresh=False)
        sizes: list[int] = []
        stops = 0
        while not await reply.pour(lambda block: sizes.append(len(block)) or len(sizes) % 3 != 0):
            stops += 1
            await asyncio.sleep(0.02)
        assert sum(sizes) == size
        assert stops == len(sizes) // 3 > 0
        client.release(reply)
        assert await_idle(client) == 1
        client.close()


async def test_the_error_of_a_sink_is_raised_where_the_answer_is_read() -> None:
    async with slowly(OK + b"content-length: 4\r\n\r\n", b"12", b"34") as server:
        client = client_of(server)
        reply = await client.post("/", [], b"", fresh=False)

        def take(block: bytes) -> bool:
            raise KeyError("x")

        with pytest.raises(KeyError):
            await reply.pour(take)
        client.release(reply)
        assert await_idle(client) == 0


async def test_a_sink_that_raised_is_not_called_again() -> None:
    connection = EngineConnection(asyncio.get_running_loop())
    connection.connection_made(Wire())
    reply = connection.ask(b"")
    connection.data_received(OK + b"content-length: 9\r\n\r\n")
    calls: list[bytes] = []

    def take(block: bytes) -> bool:
        calls.append(block)
        raise KeyError(block)

    pouring = asyncio.create_task(reply.pour(take))
    await asyncio.sleep(0)
    connection.data_received(b"abc")
    connection.data_received(b"def")
    with pytest.raises(KeyError, match="abc"):
        await pouring
    assert calls == [b"abc"]


async def test_a_block_above_the_high_water_is_poured_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_http, "HIGH_WATER_BYTES", 10)
    wire, connection = Wire(), EngineConnection(asyncio.get_running_loop())
    connection.connection_made(wire)
    reply = connection.ask(b"")
    connection.data_received(OK + b"content-length: 40\r\n\r\n")
    seen: list[bytes] = []
    pouring = asyncio.create_task(reply.pour(lambda block: not seen.append(block)))
    await asyncio.sleep(0)
    connection.data_received(b"x" * 30)
    assert (wire.paused, wire.resumed) == (1, 1)
    connection.data_received(b"y" * 10)
    assert await pouring
    assert b"".join(seen) == b"x" * 30 + b"y" * 10
    assert connection.release()


class Wire(asyncio.Transport):
    """A transport of nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = self.resumed = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def abort(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.paused += 1

    def resume_reading(self) -> None:
        self.resumed += 1


async def test_what_came_is_poured_before_the_error_of_a_body_that_is_cut() -> None:
    async with serving(OK + b"content-length: 9\r\n\r\nhello", then="close") as server:
        client = client_of(server)
        reply = await client.post("/", [], b"", fresh=False)
        seen: list[bytes] = []
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.pour(lambda block: not seen.append(block))
        assert b"".join(seen) == b"hello"
        client.release(reply)


async def test_a_kept_connection_that_closes_meanwhile_is_replaced() -> None:
    async with serving(WHOLE, WHOLE, then="close") as server, make_session() as session:
        pool = EnginePool([server.url], session)
        for _ in range(2):
            async with pool.ask(pool.engines[0], "/v1/x", [], b"{}") as answer:
                assert await answer.read() == b"hello"
        assert server.num_connections == 2
        assert pool.engines[0].in_flight == 0
        pool.close()


async def test_an_engine_that_is_not_there_is_unreachable() -> None:
    async with make_session() as session:
        pool = EnginePool(["http://127.0.0.1:1"], session)
        pool.engines[0].healthy = True
        with pytest.raises(EngineUnreachableError, match="cannot be reached"):
            async with pool.ask(pool.engines[0], "/", [], b""):
                pass
        assert not pool.engines[0].healthy


@pytest.mark.parametrize("answer", [b"hello\r\n\r\n", b""])
async def test_an_engine_without_an_answer_is_unreachable(answer: bytes) -> None:
    async with serving(answer, answer, then="close") as server, make_session() as session:
        pool = EnginePool([server.url], session)
        with pytest.raises(EngineUnreachableError):
            async with pool.ask(pool.engines[0], "/", [], b""):
                pass


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://engine/base", True),
        ("https://engine", False),
        ("http://user:word@engine", False),
    ],
)
async def test_only_plain_addresses_are_asked_so(url: str, plain: bool) -> None:
    assert is_plain(url) is plain
    async with make_session() as session:
        assert (url in EnginePool([url], session)._clients) is plain


async def test_other_addresses_are_asked_by_the_general_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(CHUNKED) as server, make_session() as session:
        pool = EnginePool([server.url], session)
        pool._clients.clear()
        async with pool.ask(pool.engines[0], "/v1/x", [("a", "b")], b"{}") as answer:
            assert (answer.status, answer.header(b"transfer-encoding")) == (200, b"chunked")
            seen: list[bytes] = []
            assert not await answer.pour(lambda block: bool(seen.append(block)))
            assert await answer.pour(lambda block: bool(seen.append(block)))
            assert seen == [b"hello"]
