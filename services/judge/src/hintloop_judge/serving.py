"""Runs an app and a worker side by side until a signal or the end of either. No judging here."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator

import uvicorn
from fastapi import FastAPI
from hintloop_contract.listening import listen


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: the process has one stop event for everything."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the handlers as they are."""
        yield


async def serve(app: FastAPI, host: str, port: int, worker: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Serve ``app`` and run ``worker`` until SIGTERM, SIGINT, or the first of them ends or fails.

    Raises:
        ConfigError: ``prm.host`` and ``prm.port`` cannot be listened on.
    """
    # uvicorn would end the process by itself where the address cannot be had.
    listening = listen(host, port, "prm")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = _Server(uvicorn.Config(app, log_config=None, access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    working = asyncio.ensure_future(worker(stop))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, working, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    server.should_exit = True
    await asyncio.gather(serving, working)
