"""An event loop on a thread, for servers that a synchronous test starts and stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import web

T = TypeVar("T")


class Background:
    """Runs coroutines beside the caller; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-servers", daemon=True)

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 120.0) -> T:
        """The result of ``work``."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def serve(self, app: web.Application) -> tuple[str, web.AppRunner]:
        """``app`` on a free port of 127.0.0.1: its address, and what is given to :meth:`end`."""
        return self.run(_serve(app))

    def end(self, runner: web.AppRunner) -> None:
        """End a server."""
        self.run(runner.cleanup())


async def _serve(app: web.Application) -> tuple[str, web.AppRunner]:
    runner = web.AppRunner(app, shutdown_timeout=0.5, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}", runner
