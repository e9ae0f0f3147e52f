"""The stack's own services as processes: started with a configuration, restarted with another, ended by their pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STOP_TIMEOUT_S = 60.0
MODULES = {"rollout-proxy": "hintloop_rollout_proxy", "prm": "hintloop.local.prm", "trainer": "hintloop_trainer"}
#: As the local stack gives it: threads that spin while they wait take the engines' time.
ENVIRONMENT = {"rollout-proxy": {}, "prm": {}, "trainer": {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}}


def clean_environment() -> dict[str, str]:
    """This process's environment without configuration of a Hintloop."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HINTLOOP_")}
    return {**kept, "PYTHONUNBUFFERED": "1", "NO_PROXY": "127.0.0.1,localhost"}


@dataclass(frozen=True, slots=True)
class Given:
    """What a deployment is configured by beside its own files."""

    files: Sequence[Path] = ()
    settings: Sequence[Path] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def and_also(self, other: Given) -> Given:
        """Both, the other later."""
        return Given((*self.files, *other.files), (*self.settings, *other.settings), {**self.env, **other.env})


@dataclass
class Service:
    """One service. ``ready``: what is still missing until it works, empty when nothing is."""

    name: str
    files: Sequence[Path]
    decided: Path
    log: Path
    ready: Callable[[], str]
    process: subprocess.Popen[bytes] | None = None

    def start(self, given: Given, timeout_s: float, *, wait: bool = True) -> None:
        """Start it; with ``wait``, until it is ready."""
        command = [sys.executable, "-m", MODULES[self.name]]
        for file in (*self.files, *given.files, self.decided):
            command += ["--config", str(file)]
        for file in given.settings:
            command += ["--settings", str(file)]
        environment = {**clean_environment(), **ENVIRONMENT[self.name], **given.env}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )
        if wait:
            self.wait_ready(timeout_s)

    def wait_ready(self, timeout_s: float) -> None:
        """Until it works."""
        deadline = time.monotonic() + timeout_s
        missing = "not asked yet"
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                raise AssertionError(f"{self.name} ended:\n{self.tail()}")
            missing = self.ready()
            if not missing:
                return
            time.sleep(0.1)
        raise AssertionError(f"{self.name} is not ready after {timeout_s:.0f} s ({missing}):\n{self.tail()}")

    def stop(self) -> None:
        """End it in order."""
        if self.process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, number)
            try:
                self.process.wait(STOP_TIMEOUT_S)
                break
            except subprocess.TimeoutExpired:
                continue
        self.process = None

    def tail(self, lines: int = 25) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
