"""Tests of the shipped compose file in a real Docker engine, which `scripts/test-compose.sh` starts for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

if "HINTLOOP_DOCKER_DATA" in os.environ:
    from tests.compose.account import save_tiny_student
    from tests.compose.stack import Stack
    from tests.compose.traffic import Traffic
else:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack, not started yet; its containers' logs are kept and everything of it is removed at the end."""
    folder = tmp_path_factory.mktemp("compose")
    # Containers run as users of their own.
    folder.chmod(0o755)
    save_tiny_student(folder / "model")
    stack = Stack(folder)
    try:
        yield stack
    finally:
        # Where it is down already, its logs were kept before.
        if stack.containers():
            stack.keep_logs(Path(os.environ["HINTLOOP_COMPOSE_LOGS"]))
        stack.compose("down", "-v", "--timeout", "20", check=False)


@pytest.fixture(scope="session")
def up(stack: Stack) -> Stack:
    """The stack as `up --wait` leaves it, with three judges."""
    stack.compose("up", "-d", "--no-build", "--wait", "--wait-timeout", "300", "--scale", "judge=3")
    return stack


@pytest.fixture(scope="session")
def traffic(up: Stack) -> Iterator[Traffic]:
    """Agents that talk all the time, from the first test that asks for it."""
    with Traffic(up.proxy_url, up.secret("proxy_api_keys")) as traffic:
        yield traffic
