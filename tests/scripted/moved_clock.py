"""Hours in seconds: an event loop whose clock moves on by itself whenever every task waits."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Any

import pytest


class MovedClock:
    """Seconds that pass only while every task waits, and no thread works for one."""

    now = 1_000_000.0
    num_working = 0

    def __call__(self) -> float:
        """The time now."""
        return self.now

    def rule(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        """Let modules that imported ``time`` read this clock."""
        for module in modules:
            monkeypatch.setattr(module, "time", _Time(self))

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run ``main`` on a loop of this clock."""
        loop = _MovedLoop(self)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main)


class _MovedLoop(asyncio.SelectorEventLoop):
    """Counts what threads do for it: that takes time of the machine's, not of this clock's."""

    def __init__(self, clock: MovedClock) -> None:
        super().__init__(_MovedSelector(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        working = super().run_in_executor(executor, func, *args)
        self._clock.num_working += 1
        working.add_done_callback(self._done)
        return working

    def _done(self, _: asyncio.Future[Any]) -> None:
        self._clock.num_working -= 1


class _MovedSelector(selectors.DefaultSelector):
    """Gives sockets a moment to become ready; when none does, moves the clock on instead of waiting."""

    def __init__(self, clock: MovedClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None and timeout <= 0 else 0.002)
        if not ready and timeout and not self._clock.num_working:
            self._clock.now += timeout
        return ready


class _Time:
    """Stands in for the module ``time``."""

    def __init__(self, clock: MovedClock) -> None:
        self.time = self.monotonic = clock
        self.perf_counter = time.perf_counter
