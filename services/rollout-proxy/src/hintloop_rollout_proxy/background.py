"""The tasks beside the server that must run as long as it does. Their unexpected end ends the process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from traceback import format_tb
from typing import Any

import structlog

from hintloop_rollout_proxy.errors import said

log = structlog.get_logger()


class Background:
    """Tasks by name. One that ends before it is awaited or cancelled has failed, whatever it returned."""

    def __init__(self) -> None:
        """Begin without a task."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``loop`` as task ``name``."""
        task = asyncio.create_task(loop, name=name)
        task.add_done_callback(_report)
        self._tasks[name] = task
        return task

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """Every task."""
        return set(self._tasks.values())

    @property
    def running(self) -> bool:
        """Whether none has ended."""
        return not any(task.done() for task in self._tasks.values())

    def describe(self) -> dict[str, str]:
        """State of every task, for people."""
        return {name: _state(task) for name, task in self._tasks.items()}


def _state(task: asyncio.Task[None]) -> str:
    if not task.done():
        return "running"
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return "ended" if error is None else f"failed: {said(error)}"


def _report(task: asyncio.Task[None]) -> None:
    """A background task that fails is a bug; it is said aloud, not swallowed."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        trace = format_tb(error.__traceback__)
        log.error("background task failed", task=task.get_name(), error=said(error), trace=trace)
