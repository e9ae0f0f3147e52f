"""Real engines for the integration tests: installed when missing, started once a session, stopped by pid."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

ENGINES = Path(__file__).resolve().parents[2] / "engines"
# Seconds on an idle machine; minutes beside a trainer, other engines and a build.
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
LOG_TAIL_LINES = 40
CONTEXT_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class RunningEngine:
    """A real engine server on loopback."""

    kind: str
    base_url: str
    model_dir: Path
    name: str
    log_path: Path
    pid: int


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def log_tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])


def run_script(*command: str) -> str:
    """Run a set-up script and return the last line of its stdout; its stderr becomes the error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}", pytrace=False)
    return done.stdout.strip().splitlines()[-1]


def wait_healthy(process: subprocess.Popen[bytes], base_url: str, log_path: Path) -> None:
    """Return once `GET /health` answers 200; fail with the log's end when it never does."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"engine ended with {process.returncode}:\n{log_tail(log_path)}", pytrace=False)
        try:
            if httpx.get(f"{base_url}/health", timeout=5.0).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    pytest.fail(f"engine not healthy after {START_TIMEOUT_S:.0f} s:\n{log_tail(log_path)}", pytrace=False)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the server's whole process group, politely first."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait(STOP_TIMEOUT_S)


def serve(
    kind: str, model_dir: Path, log_dir: Path, context_tokens: int = CONTEXT_TOKENS, port: int = 0, **variables: str
) -> Generator[RunningEngine, None, None]:
    """Install `kind` if need be, start it as a policy engine, and stop it when the generator closes.

    `variables` are those of the environment that `start.sh` reads.
    """
    run_script(str(ENGINES / kind / "install.sh"))
    port = port or free_port()
    base_url, log_path, name = f"http://127.0.0.1:{port}", log_dir / f"{kind}.log", "policy"
    command = [
        str(ENGINES / kind / "start.sh"),
        *("--model", str(model_dir), "--port", str(port), "--served-model-name", name, "--role", "policy"),
        *("--max-model-len", str(context_tokens)),
    ]
    with log_path.open("wb") as log:
        environment = {**os.environ, **variables}
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )
    try:
        wait_healthy(process, base_url, log_path)
        yield RunningEngine(
            kind=kind,
            base_url=base_url,
            model_dir=model_dir,
            name=name,
            log_path=log_path,
            pid=process.pid,
        )
    finally:
        stop(process)


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face directory, float32, tied embeddings."""
    return Path(run_script(str(ENGINES / "models" / "prepare.sh"), sys.executable))


@pytest.fixture(scope="session")
def vllm_policy(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """vLLM serving SmolLM2 in float32; whoever changes its weights restores them."""
    yield from serve("vllm", smollm2_dir, tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="session")
def sglang_policy(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """SGLang serving SmolLM2 in float32; whoever changes its weights restores them."""
    yield from serve("sglang", smollm2_dir, tmp_path_factory.mktemp("sglang"))
