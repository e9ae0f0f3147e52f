"""Runs a stock agent library in the environment that holds them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.rollout_proxy.conftest import make_broker, start_proxy

__all__ = ["make_broker", "start_proxy"]

CLIENTS = Path(__file__).parents[2] / "clients"


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """The interpreter of the agent libraries' environment, which is made when missing."""
    done = subprocess.run([CLIENTS / "install.sh"], check=True, capture_output=True, text=True)
    return Path(done.stdout.splitlines()[-1]) / "bin" / "python"


@pytest.fixture
def run_agent(clients_python: Path, tmp_path: Path) -> Callable[..., Awaitable[dict[str, Any]]]:
    """``await run_agent(name, proxy_url, *words)``: what the agent said at its end."""

    async def run(name: str, *words: str, **settings: str) -> dict[str, Any]:
        environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        environment |= {"HOME": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"} | settings
        process = await asyncio.create_subprocess_exec(
            clients_python,
            "-W",
            "ignore",
            CLIENTS / "agents" / f"{name}.py",
            *words,
            env=environment,
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(240):
                out, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, f"{name} failed:\n{errors.decode()[-4000:]}"
        said: dict[str, Any] = json.loads(out.decode().splitlines()[-1])
        return said

    return run
