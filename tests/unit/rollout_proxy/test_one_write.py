"""The head of an answer goes out with the first of its body, and nothing else waits."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

import pytest
import uvicorn
import uvloop
from hintloop_rollout_proxy.one_write import JoiningProtocol, JoiningTransport

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Kept:
    """A transport that keeps what is written; one that is lost refuses it, as uvloop's does."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        if self.closed:
            raise RuntimeError("the handler is closed")
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> str:
        return name


def pair() -> tuple[JoiningTransport, Kept]:
    kept = Kept()
    return JoiningTransport(cast(asyncio.Transport, kept), asyncio.get_running_loop()), kept


async def test_a_head_goes_out_with_the_first_of_its_body() -> None:
    transport, kept = pair()
    transport.write(HEAD)
    assert kept.written == []
    transport.write(b"body")
    transport.write(b"more")
    await asyncio.sleep(0)
    assert kept.written == [HEAD + b"body", b"more"]


async def test_a_head_without_body_goes_out_in_the_next_round() -> None:
    transport, kept = pair()
    transport.write(HEAD)
    await asyncio.sleep(0)
    assert kept.written == [HEAD]
    transport.write(b"HTTP/1.1 is what this body says")
    await asyncio.sleep(0)
    transport.write(b"!")
    assert kept.written == [HEAD, b"HTTP/1.1 is what this body says", b"!"]


async def test_what_waits_is_written_before_the_connection_closes() -> None:
    transport, kept = pair()
    transport.write(HEAD)
    transport.close()
    assert (kept.written, kept.closed, transport.is_closing()) == ([HEAD], True, True)
    await asyncio.sleep(0)
    assert kept.written == [HEAD]


async def test_a_head_that_waits_for_a_lost_connection_is_dropped() -> None:
    transport, kept = pair()
    transport.write(HEAD)
    kept.closed = True
    await asyncio.sleep(0)
    transport.close()
    assert kept.written == []


async def test_all_else_is_the_transports_own() -> None:
    transport, _ = pair()
    assert transport.get_extra_info("peername") == "peername"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with a stream that lasts, or at ``/whole`` at once."""
    await receive()
    if scope["path"] == "/whole":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(400):
        await send({"type": "http.response.body", "body": b"x" * 2000, "more_body": True})
        await asyncio.sleep(0.002)
    await send({"type": "http.response.body", "body": b"end"})


async def live() -> None:
    """Clients that break off without reading, in the middle of others' streams."""
    config = uvicorn.Config(app, port=0, http=JoiningProtocol, ws="none", lifespan="off", log_config=None, loop="none")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        port = listener.getsockname()[1]
        broken: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))

        async def ask(path: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path)
            return reader, writer

        steady = [await ask(b"/") for _ in range(4)]
        for _ in range(60):
            _, writer = await ask(b"/")
            await asyncio.sleep(0.005)
            # Closed with a reset, whatever lies unread.
            options = writer.get_extra_info("socket")
            options.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        for reader, writer in steady:
            body = b""
            while not body.endswith(b"end\r\n0\r\n\r\n"):
                block = await reader.read(100_000)
                assert block, "the stream was cut"
                body += block
            assert body.count(b"x") == 400 * 2000
            writer.write(b"GET /whole HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"\r\n\r\nok")
            writer.close()
        server.should_exit = True
        await serving
        assert not broken


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_clients_that_break_off_disturb_nobody(run: Callable[[Any], None]) -> None:
    run(asyncio.wait_for(live(), 60))
