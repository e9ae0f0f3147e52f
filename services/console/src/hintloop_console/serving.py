"""Runs the app and the reader side by side until a signal or the end of either. No page, no turn here."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator

import structlog
import uvicorn
from fastapi import FastAPI
from hintloop_contract.listening import listen

#: Pages that listen for events never end by themselves.
CLOSING_S = 2


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: the process has one stop event for everything."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the handlers as they are."""
        yield


async def serve(
    app: FastAPI, host: str, port: int, work: Callable[[asyncio.Event], Awaitable[None]], stop: asyncio.Event
) -> None:
    """Serve ``app`` and do ``work`` until SIGTERM, SIGINT, ``stop``, or the first of them ends or fails.

    Raises:
        ConfigError: ``console.host`` and ``console.port`` cannot be listened on.
    """
    listening = listen(host, port, "console")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    address = listening.getsockname()
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    structlog.get_logger().info("console listens", url=f"http://{shown}:{address[1]}/")
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=CLOSING_S)
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    working = asyncio.ensure_future(work(stop))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, working, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    server.should_exit = True
    await asyncio.gather(serving, working)
