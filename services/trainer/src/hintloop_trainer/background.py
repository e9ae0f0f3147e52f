"""An asyncio loop in a thread of its own: the streams and the engines are spoken to while torch computes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from hintloop_trainer.errors import BackgroundError

T = TypeVar("T")


class Background:
    """A running loop; use as a context manager."""

    def __init__(self) -> None:
        """Make the loop; it runs inside ``with``."""
        self.loop = asyncio.new_event_loop()
        self._lasting: dict[str, Future[None]] = {}
        self._thread = threading.Thread(target=self.loop.run_forever, name="background", daemon=True)

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.run(self._cancel_rest())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _cancel_rest(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start ``work`` there."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def keep(self, name: str, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Start ``work`` that is not to end before it is told to; :meth:`check` notices when it does."""
        self._lasting[name] = self.submit(work)
        return self._lasting[name]

    def check(self) -> None:
        """See whether all that was to last still runs.

        Raises:
            BackgroundError: something ended, with the reason.
        """
        for name, task in self._lasting.items():
            if not task.done():
                continue
            error = task.exception()
            detail = "without an error" if error is None else f"{type(error).__name__}: {error}"
            raise BackgroundError(f"{name} ended: {detail}") from error

    def finish(self, timeout_s: float) -> None:
        """Wait for what was to last, once it was told to end.."""
        wait(self._lasting.values(), timeout_s)
        self._lasting.clear()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` there and wait for its result."""
        return self.submit(work).result()
