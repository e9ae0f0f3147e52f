"""Runs doctor as a process of its own and keeps its last report. Reads nothing of the report but that it is JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from hintloop_console.errors import RequestError
from hintloop_console.store import Store

MAX_REPORT_BYTES = 8 * 1024 * 1024
_KEPT = "doctor"
#: Last lines of what it said when it gave no report.
_TOLD = 2000


class DoctorRuns:
    """One run at a time."""

    def __init__(self, store: Store, command: Sequence[str], arguments: Sequence[str], timeout_s: float) -> None:
        """Start ``command`` with ``arguments`` behind it; end it after ``timeout_s`` seconds."""
        self._store = store
        self._command = [*command, *arguments] if command else []
        self._timeout_s = timeout_s
        self._run: asyncio.Task[None] | None = None
        self._started_ms: int | None = None

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self._run is not None and not self._run.done()

    def start(self) -> None:
        """Start it.

        Raises:
            RequestError: it runs, or cannot be run from here.
        """
        if not self._command:
            raise RequestError(404, "console.doctor_command is empty: run `hintloop doctor` where the deployment is")
        if self.running:
            raise RequestError(409, "doctor runs already")
        self._started_ms = _now_ms()
        self._run = asyncio.create_task(self._examine())

    def state(self) -> dict[str, Any]:
        """The last report, and whether one is being made. Blocks on the database."""
        kept = self._store.remembered(_KEPT)
        last = (
            json.loads(kept)
            if kept
            else {"report": None, "started_ms": None, "ended_ms": None, "exit_code": None, "error": None}
        )
        running = self.running
        started_ms = self._started_ms if running else last["started_ms"]
        return {**last, "running": running, "started_ms": started_ms, "available": bool(self._command)}

    async def close(self) -> None:
        """End a run."""
        if self._run is not None:
            self._run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._run

    async def _examine(self) -> None:
        started_ms = self._started_ms
        try:
            code, report, error = await self._output()
        except OSError as failed:
            code, report, error = None, None, f"{self._command[0]!r} cannot be started: {failed.strerror or failed}"
        if error:
            structlog.get_logger().warning("doctor gave no report", detail=error)
        made = {"report": report, "started_ms": started_ms, "ended_ms": _now_ms(), "exit_code": code, "error": error}
        await asyncio.to_thread(self._store.remember, _KEPT, json.dumps(made))

    async def _output(self) -> tuple[int | None, Any, str | None]:
        process = await asyncio.create_subprocess_exec(
            *self._found(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=MAX_REPORT_BYTES,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                said, complained = await _read(process)
        except TimeoutError:
            return (
                None,
                None,
                f"it was not done within console.doctor_timeout_s ({self._timeout_s:.0f} s) and was ended",
            )
        finally:
            await _end(process)
        if len(said) > MAX_REPORT_BYTES:
            return process.returncode, None, f"its report is longer than {MAX_REPORT_BYTES} bytes"
        try:
            return process.returncode, json.loads(said), None
        except ValueError:
            told = (complained or said).decode(errors="replace").strip()[-_TOLD:]
            return process.returncode, None, told or f"it said nothing and ended with code {process.returncode}"

    def _found(self) -> list[str]:
        """The command; one of this environment is found there, also where it is not on the path."""
        name, *rest = self._command
        if os.sep not in name and shutil.which(name) is None:
            beside = Path(sys.executable).with_name(name)
            name = str(beside) if beside.is_file() else name
        return [name, *rest]


async def _read(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    assert process.stdout is not None and process.stderr is not None
    said, complained = await asyncio.gather(_at_most(process.stdout), _at_most(process.stderr))
    await process.wait()
    return said, complained


async def _at_most(stream: asyncio.StreamReader) -> bytes:
    """What a stream gives, a byte past the bound at most; the rest is read and forgotten."""
    kept = bytearray()
    while chunk := await stream.read(65_536):
        if len(kept) <= MAX_REPORT_BYTES:
            kept += chunk
    return bytes(kept[: MAX_REPORT_BYTES + 1])


async def _end(process: asyncio.subprocess.Process) -> None:
    """End it with what it started."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _now_ms() -> int:
    return int(time.time() * 1000)
