"""Processes on one core: started, timed by the kernel's own count, ended by their ids. Owns what shares that core."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STOP_S = 10.0
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@dataclass(slots=True)
class Server:
    """A process in a session of its own, with whatever it started."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def _stats(self) -> list[list[str]]:
        """``/proc/<pid>/stat`` from the state on, of every process in the session."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[3] == str(self.process.pid):
                found.append(fields)
        return found

    @property
    def cpu_s(self) -> float:
        """CPU seconds used so far, in user and kernel mode."""
        return sum(int(fields[11]) + int(fields[12]) for fields in self._stats()) * TICK_S

    @property
    def memory_mb(self) -> float:
        """Resident memory now, megabytes."""
        return sum(int(fields[21]) for fields in self._stats()) * PAGE_BYTES / 1e6

    def check(self) -> None:
        """Raise ``RuntimeError`` with the log's end when it has ended."""
        if self.process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{tail}")

    def stop(self) -> None:
        """End the session's processes, politely first."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(STOP_S)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue
            else:
                return


@dataclass(slots=True)
class Core:
    """One CPU core and the servers on it."""

    number: int
    servers: list[Server] = field(default_factory=list)

    def start(
        self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> Server:
        """Start ``command`` on this core; its output goes to ``<folder>/<name>.log``."""
        log = folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["taskset", "-c", str(self.number), *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        server = Server(name, process, log)
        self.servers.append(server)
        return server

    def run(self, command: Sequence[str]) -> tuple[str, float]:
        """Run ``command`` on this core to its end: its output, and its CPU seconds."""
        before = _children_s()
        done = subprocess.run(
            ["taskset", "-c", str(self.number), *command], capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout, _children_s() - before

    @property
    def busy_s(self) -> float:
        """Seconds that this core was not idle, whoever used it; time stolen by the host counts."""
        for line in Path("/proc/stat").read_text().splitlines():
            name, *ticks = line.split()
            if name == f"cpu{self.number}":
                user, nice, system, _, _, irq, softirq, steal = map(int, ticks[:8])
                return (user + nice + system + irq + softirq + steal) * TICK_S
        raise RuntimeError(f"/proc/stat knows no core {self.number}")

    def stop(self) -> None:
        """End every server."""
        for server in reversed(self.servers):
            server.stop()


def _end_with_parent() -> None:
    """In the child: nothing outlives a benchmark that was killed."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def wait_for_line(server: Server, timeout_s: float = 20.0) -> str:
    """The first line that a server prints."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        text = server.log.read_text(errors="replace")
        if "\n" in text:
            return text.partition("\n")[0]
        server.check()
        time.sleep(0.02)
    raise RuntimeError(f"{server.name} printed nothing within {timeout_s:g} s")
