"""The console in a real browser while the demo runs: what happens is shown as it happens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.onlooker import STEP_S, console_url, look_on

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1700)]


@contextmanager
def running(folder: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A demo of two steps: the file with what it says, and its process, which is ended with all that it started."""
    prompts, output = folder / "prompts.jsonl", folder / "output"
    prompts.write_text(json.dumps({"prompt": "What is rain?", "topic": "rain"}) + "\n")
    asked = ["--steps", "2", "--eval-prompts", str(prompts), "--eval-answers", "2", "--step-timeout", "400"]
    called = [sys.executable, "-m", "hintloop", "demo", *asked, "--state-dir", str(folder / "state")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HINTLOOP_")}
    with output.open("w") as out:
        process = subprocess.Popen(called, env=environment, stdout=out, stderr=out, text=True)
    try:
        yield output, process
    finally:
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGINT)
        try:
            process.wait(180)
        finally:
            process.kill()
            _, left = psutil.wait_procs(below, timeout=20)
            for one in left:
                one.kill()


def test_somebody_who_looks_on_sees_the_step_being_made(tmp_path: Path) -> None:
    with running(tmp_path) as (output, process):
        url = console_url(output, process)
        try:
            asyncio.run(asyncio.wait_for(look_on(url, tmp_path), 2 * STEP_S))
        except Exception as error:
            raise AssertionError(f"the demo had said:\n{output.read_text()[-4000:]}") from error
