"""Ctrl-C and SIGTERM: the first one ends the run in order, the next ones end the patience."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedRunError(Exception):
    """The user, or the system, asked for the end. ``number`` is the signal."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


async def _interruptible(main: Coroutine[Any, Any, T], hurry: Callable[[], None]) -> T:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main)
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        if len(received) == 1:
            task.cancel()
        else:
            hurry()

    for number in STOPPING:
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            raise InterruptedRunError(received[0]) from None
        raise
    finally:
        for number in STOPPING:
            loop.remove_signal_handler(number)


def run(main: Coroutine[Any, Any, T], hurry: Callable[[], None]) -> T:
    """Run ``main`` to its end; ``hurry`` is called at each further signal.

    Raises:
        InterruptedRunError: a signal came, and ``main`` has cleaned up.
    """
    return asyncio.run(_interruptible(main, hurry))
