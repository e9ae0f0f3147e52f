"""Watching a client while it is answered, and sending where nothing can be awaited."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import pytest
from hintloop_rollout_proxy.asgi import AnswerWatch, Message, Pushing
from hintloop_rollout_proxy.errors import ClientGoneError


class Client:
    """One that leaves when it is told to."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_a_block_that_ends_is_left_alone() -> None:
    client = Client()
    with AnswerWatch(client.receive, 60):
        await asyncio.sleep(0.05)
    client.left.set()
    await asyncio.sleep(0.05)
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


async def test_a_client_that_leaves_ends_the_block() -> None:
    client = Client()
    asyncio.get_running_loop().call_later(0.05, client.left.set)
    with pytest.raises(ClientGoneError):
        with AnswerWatch(client.receive, 60):
            await asyncio.sleep(60)
    await asyncio.sleep(0)  # a cancellation that stayed would end this


@pytest.mark.parametrize("limit_s", [0.001, 0.1])
async def test_a_block_that_takes_too_long_ends(limit_s: float) -> None:
    with pytest.raises(TimeoutError):
        with AnswerWatch(Client().receive, limit_s):
            await asyncio.sleep(60)
    await asyncio.sleep(0)


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_cancellation_from_outside_stays_one_even_when_the_client_leaves_too(leaves: bool) -> None:
    client, begun = Client(), asyncio.Event()

    async def work() -> None:
        with AnswerWatch(client.receive, 60):
            begun.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await begun.wait()
    await asyncio.sleep(0.05)
    if leaves:
        client.left.set()
        await asyncio.sleep(0)  # the listener ends the block, which has not come to it yet
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_that_was_swallowed_before_is_none_of_the_blocks() -> None:
    async def work() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        with AnswerWatch(Client().receive, 0.01):
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(TimeoutError):
        await task


async def test_an_ended_block_leaves_nothing_to_collect() -> None:
    gc.collect()
    gc.disable()
    try:
        held = Held()
        watched = weakref.ref(held)
        with pytest.raises(TimeoutError):
            with AnswerWatch(held.receive, 0.01):
                await asyncio.sleep(60)
        del held
        await asyncio.sleep(0)
        assert watched() is None
    finally:
        gc.enable()


class Held:
    """What a request holds on to."""

    async def receive(self) -> Message:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}


async def test_an_error_of_the_block_comes_through() -> None:
    with pytest.raises(KeyError):
        with AnswerWatch(Client().receive, 60):
            raise KeyError("x")


class Server:
    """Takes parts of a body; waits while ``room`` is not set, as a server does whose client does not read."""

    def __init__(self) -> None:
        self.room = asyncio.Event()
        self.room.set()
        self.taken: list[bytes] = []

    async def send(self, message: Any) -> None:
        if not self.room.is_set():
            await self.room.wait()
        self.taken.append(message["body"])


async def test_parts_are_sent_at_once_while_the_server_takes_them() -> None:
    server = Server()
    push = Pushing(server.send)
    assert push(b"a") and push(b"b")
    await push.finish()
    assert server.taken == [b"a", b"b"]


async def waiting() -> tuple[Server, Pushing, asyncio.Task[None]]:
    """A server that does not take a part yet, and a task that waits until it does."""
    server = Server()
    push = Pushing(server.send)
    server.room.clear()
    assert not push(b"a")

    async def finish() -> None:
        await push.finish()

    finishing = asyncio.create_task(finish())
    await asyncio.sleep(0.05)
    return server, push, finishing


async def test_a_server_that_waits_is_waited_for() -> None:
    server, push, finishing = await waiting()
    assert not finishing.done() and server.taken == []
    server.room.set()
    async with asyncio.timeout(60):
        await finishing
    assert push(b"b")
    assert server.taken == [b"a", b"b"]


async def test_waiting_for_a_server_can_be_cancelled() -> None:
    server, _, finishing = await waiting()
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    server.room.set()
    await asyncio.sleep(0.05)
    assert server.taken == []


async def test_an_error_of_the_server_is_raised_where_it_is_sent() -> None:
    async def send(message: Any) -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        Pushing(send)(b"a")
