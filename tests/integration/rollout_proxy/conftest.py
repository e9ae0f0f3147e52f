"""The proxy as a process: the real launcher, a real Redis, whichever engine a test brings."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hintloop_contract.redis_broker import RedisBroker, connect


class ProxyProcess:
    """`python -m hintloop_rollout_proxy` on a free port of 127.0.0.1."""

    def __init__(self, folder: Path, engine: str, engine_url: str, redis_url: str, *words: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        settings = {
            "rollout.engine": engine,
            "policy.engines": f'["{engine_url}"]',
            "policy.name": "test",
            "proxy.port": str(port),
            "proxy.spool_dir": str(folder / "spool"),
            "redis.url": redis_url,
            "linker.settle_ms": "200",
        }
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        self.log_path = folder / "proxy.log"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hintloop_rollout_proxy", *flags, *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def wait(self, path: str) -> None:
        """Until ``path`` answers 200."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(self.url + path, timeout=30).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        pytest.fail(f"{path} never answered 200:\n{self.log_path.read_text()[-4000:]}", pytrace=False)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail(f"the proxy did not end:\n{self.log_path.read_text()[-4000:]}", pytrace=False)


@pytest.fixture
def start_proxy(tmp_path: Path) -> Iterator[Callable[..., ProxyProcess]]:
    running: list[ProxyProcess] = []

    def start(engine: str, engine_url: str, redis_url: str, *words: str) -> ProxyProcess:
        process = ProxyProcess(tmp_path, engine, engine_url, redis_url, *words)
        running.append(process)
        process.wait("/hintloop/health")
        return process

    yield start
    for process in running:
        process.stop()


@pytest.fixture
async def make_broker() -> AsyncIterator[Callable[[str], Any]]:
    made: list[RedisBroker] = []

    def make(url: str) -> RedisBroker:
        made.append(RedisBroker(connect(url), "test"))
        return made[-1]

    yield make
    # A test that fails leaves nothing open, for which another one would be blamed.
    for broker in made:
        await broker.close()
