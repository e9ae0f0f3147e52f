"""The console as people run it: a process of its own on a free port, with its database in a folder of the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from tests.integration.conftest import free_port, log_tail

PASSWORD = "correct horse battery"
START_TIMEOUT_S = 180.0


class RunningConsole:
    """`python -m hintloop_console`; can be ended and started again on the same port and data."""

    def __init__(self, folder: Path, redis_url: str, *, tokenizer: Path, settings: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self._folder = folder
        self._log = folder / "console.log"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HINTLOOP_")},
            "HINTLOOP_CONSOLE__PASSWORD": PASSWORD,
        }
        pairs = [
            f"redis.url={redis_url}",
            f"console.port={self.port}",
            f"console.database={folder / 'console.sqlite3'}",
            f"model.tokenizer_path={tokenizer}",
            *settings,
        ]
        self._arguments = [part for pair in pairs for part in ("--set", pair)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hintloop_console", *self._arguments],
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._folder,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}ready", timeout=30).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"the console did not start:\n{log_tail(self._log)}")

    def get(self, path: str, **query: str | int) -> httpx.Response:
        """A GET of the API."""
        return httpx.get(f"{self.url}api/v1/{path}", params=query, timeout=60)

    def wait_for_turns(self, number: int, timeout_s: float = 240.0) -> None:
        """Return once it has read so many turns."""
        deadline = time.monotonic() + timeout_s
        seen = 0
        while time.monotonic() < deadline:
            seen = self.get("turns", limit=1).json()["total"]
            if seen >= number:
                return
            time.sleep(0.1)
        raise RuntimeError(f"{seen} of {number} turns read after {timeout_s} s:\n{log_tail(self._log)}")

    def stop(self) -> None:
        """As a supervisor ends it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None
