"""What one round of the loop writes to a connection goes out as one."""

from __future__ import annotations

import asyncio
from typing import cast

from hintloop_rollout_proxy.write_round import RoundTransport, WriteRound


class Socket:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> str:
        return name


def pair() -> tuple[RoundTransport, Socket, WriteRound]:
    socket, round_ = Socket(), WriteRound(asyncio.get_running_loop())
    return RoundTransport(cast(asyncio.Transport, socket), round_), socket, round_


async def test_what_a_round_writes_goes_out_as_one_in_order() -> None:
    transport, socket, _ = pair()
    transport.write(b"head ")
    transport.write(b"body")
    assert socket.written == []
    await asyncio.sleep(0)
    assert socket.written == [b"head body"]
    transport.write(b" more")
    await asyncio.sleep(0)
    assert socket.written == [b"head body", b" more"]


async def test_connections_of_a_round_do_not_mix() -> None:
    first, socket, round_ = pair()
    other = Socket()
    second = RoundTransport(cast(asyncio.Transport, other), round_)
    for number in range(3):
        first.write(b"a%d" % number)
        second.write(b"b%d" % number)
    await asyncio.sleep(0)
    assert (socket.written, other.written) == ([b"a0a1a2"], [b"b0b1b2"])


async def test_what_waits_is_written_before_the_connection_closes() -> None:
    transport, socket, _ = pair()
    transport.write(b"last")
    transport.close()
    assert (socket.written, socket.closed, transport.is_closing()) == ([b"last"], True, True)
    await asyncio.sleep(0)
    assert socket.written == [b"last"]


async def test_all_else_is_the_transports_own() -> None:
    transport, _, _ = pair()
    assert transport.get_extra_info("peername") == "peername"
