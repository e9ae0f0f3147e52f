"""Processes of the stack: start, wait until ready, watch, stop. Knows nothing of what they are.

Each runs under a guard (`guard.py`), so that nothing outlives this process, not even when it is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hintloop.errors import InstallError, NotReadyError, ProcessDiedError, StackError, log_tail
from hintloop.local import guard
from hintloop.local.tasks import together

GUARD = Path(guard.__file__)

#: What a readiness check saw: ``None`` when ready, else why not yet.
Check = Callable[[], Awaitable[str | None]]
#: Told of every change: process name, state, detail.
Listener = Callable[[str, str, str], None]


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """How one process is run. ``stop_grace_s`` passes between SIGTERM and SIGKILL.

    Of one that is not ``vital`` the end is told, and nothing else follows from it.
    """

    name: str
    command: Sequence[str]
    ready: Check
    ready_timeout_s: float
    stop_grace_s: float = 15.0
    env: Mapping[str, str] = field(default_factory=dict)
    vital: bool = True


def guarded(command: Sequence[str], grace_s: float) -> list[str]:
    """``command`` under a guard that belongs to this process."""
    return [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), str(grace_s), "--", *command]


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code > 128:
        try:
            return f"was ended by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"ended with exit code {code}"


class RunningProcess:
    """A started process. ``code`` is ``None`` while it runs."""

    def __init__(self, spec: ProcessSpec, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self.started = time.monotonic()
        self.stopping = False
        self._process = process
        self._ended = asyncio.ensure_future(process.wait())

    @property
    def pid(self) -> int:
        """Pid of the guard."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code, ``None`` while it runs."""
        return self._process.returncode

    async def ended(self) -> int:
        """Wait for the end; the exit code."""
        return await asyncio.shield(self._ended)

    def died(self) -> ProcessDiedError:
        """The error that says how it ended."""
        return ProcessDiedError(
            self.spec.name, describe_exit(self.code if self.code is not None else -1), self.log_path
        )

    async def wait_ready(self, on_wait: Callable[[str], None], interval_s: float = 0.25) -> float:
        """Poll the readiness check; seconds from the start until ready.

        Raises:
            ProcessDiedError: it ended first.
            NotReadyError: it took longer than ``ready_timeout_s``.
        """
        seen = "not asked yet"
        deadline = self.started + self.spec.ready_timeout_s
        while time.monotonic() < deadline:
            if self.code is not None:
                raise self.died()
            answer = await self.spec.ready()
            if answer is None:
                return time.monotonic() - self.started
            if answer != seen:
                seen = answer
                on_wait(seen)
            await asyncio.sleep(interval_s)
        raise NotReadyError(self.spec.name, self.spec.ready_timeout_s, seen, self.log_path)

    async def stop(self) -> int:
        """SIGTERM, then SIGKILL to everything of it after the grace; the exit code.

        The guard does the waiting and the killing; it is given some seconds more before it is killed itself.
        """
        self.stopping = True
        if self.code is None:
            self._signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self.spec.stop_grace_s + 10.0):
                    await self.ended()
            except TimeoutError:
                self._signal(signal.SIGKILL)
        return await self.ended()

    def hurry(self) -> None:
        """End the grace of a process that is being stopped."""
        if self.stopping and self.code is None:
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        try:
            self._process.send_signal(number)
        except ProcessLookupError:
            return


class Supervisor:
    """All processes of a stack, in the order in which they were started."""

    def __init__(self, log_dir: Path, listener: Listener) -> None:
        self.log_dir = log_dir
        self.listener = listener
        self.running: dict[str, RunningProcess] = {}

    async def start(self, spec: ProcessSpec) -> RunningProcess:
        """Start a process with its output in ``<log_dir>/<name>.log``; does not wait until it is ready."""
        if spec.name in self.running:
            raise StackError(f"process {spec.name!r} is already part of the stack")
        self.log_dir.mkdir(parents=True, exist_ok=True)
        log_path = self.log_dir / f"{spec.name}.log"
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *guarded(spec.command, spec.stop_grace_s),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **spec.env},
                # A Ctrl-C in the terminal must reach this process alone, which then stops the others in order.
                start_new_session=True,
            )
        running = RunningProcess(spec, process, log_path)
        self.running[spec.name] = running
        self.listener(spec.name, "starting", f"log {log_path}")
        return running

    async def run_tool(self, name: str, command: Sequence[str]) -> str:
        """Run a command to its end, its errors in ``<log_dir>/<name>.log``; the last line of its output.

        Raises:
            InstallError: it failed or printed nothing; the message shows the end of the log.
        """
        self.log_dir.mkdir(parents=True, exist_ok=True)
        log_path = self.log_dir / f"{name}.log"
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *guarded(command, grace_s=5.0),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
        lines = output.decode().strip().splitlines()
        if process.returncode != 0 or not lines:
            cause = describe_exit(process.returncode or 0)
            raise InstallError(f"{name} {cause}; the end of {log_path}:\n{log_tail(log_path)}")
        return lines[-1]

    async def wait_ready(self, *names: str) -> None:
        """Wait until all of these are ready, or raise for the first that will not be."""

        async def one(name: str) -> None:
            process = self.running[name]
            seconds = await process.wait_ready(lambda seen: self.listener(name, "starting", seen))
            self.listener(name, "ready", f"after {seconds:.1f} s")

        await together(*(one(name) for name in names))

    async def watch(self) -> None:
        """Wait for ever, or until a vital process ends that nobody asked to.

        Raises:
            ProcessDiedError: says which, how, and shows the end of its log.
        """
        tasks = {asyncio.ensure_future(process.ended()): process for process in self._watched()}
        try:
            while tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    process = tasks.pop(task)
                    if not process.stopping:
                        self.listener(process.spec.name, "died", describe_exit(process.code or 0))
                        if process.spec.vital:
                            raise process.died()
        finally:
            for task in tasks:
                task.cancel()

    def _watched(self) -> list[RunningProcess]:
        """What is looked at; of one that is not vital and has ended, that was told already."""
        return [process for process in self.running.values() if process.spec.vital or process.code is None]

    async def stop(self, *names: str) -> None:
        """Stop these processes side by side; unknown or ended ones are skipped."""

        async def one(process: RunningProcess) -> None:
            if process.code is not None:
                return
            self.listener(process.spec.name, "stopping", "")
            code = await process.stop()
            self.listener(process.spec.name, "stopped", "" if code == 0 else describe_exit(code))

        await asyncio.gather(*(one(self.running[name]) for name in names if name in self.running))

    def hurry(self) -> None:
        """End the grace of everything that is being stopped."""
        for process in self.running.values():
            process.hurry()
