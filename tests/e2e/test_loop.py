"""The loop as a user runs it: real engines, real Redis, all services, the stock client."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

EVAL_PROMPTS = [("What is rain?", "rain"), ("Briefly tell me about snow.", "snow"), ("What is a lake?", "a lake")]


def command(state: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "hintloop", *arguments, "--state-dir", str(state)]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HINTLOOP_")}


def below(pid: int) -> list[psutil.Process]:
    return list(psutil.Process(pid).children(recursive=True))


def left(processes: list[psutil.Process], timeout_s: float = 20.0) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def using(path: Path) -> list[int]:
    """Pids of processes whose command line names ``path``."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        if any(str(path) in part for part in process.info["cmdline"] or []):
            found.append(process.info["pid"])
    return found


def write_prompts(path: Path) -> None:
    path.write_text("".join(json.dumps({"prompt": p, "topic": t}) + "\n" for p, t in EVAL_PROMPTS))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A demo of two steps that has run to its end; its state directory."""
    folder = tmp_path_factory.mktemp("demo")
    prompts = folder / "prompts.jsonl"
    write_prompts(prompts)
    state = folder / "state"
    asked = ("--eval-prompts", str(prompts), "--eval-answers", "6")
    arguments = command(state, "demo", "--steps", "2", *asked, "--step-timeout", "400")
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, timeout=1300, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    yield state


def test_two_steps_close_the_loop(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    assert report["steps"] == 2
    assert report["preference_before"]["n"] == report["preference_after"]["n"] == 6
    assert report["trained"] >= 32
    assert report["refused_requests"] == 0
    assert report["token_mismatches"] == 0
    assert report["advantage"]["share_positive"] >= 0.1
    assert report["advantage"]["share_negative"] >= 0.1
    assert report["policy_version_after"] != report["policy_version_before"]
    # Two answers a conversation; each first one is linked, judged, hinted and scored.
    assert report["captured"] >= 2 * 32
    assert report["linked"] == report["judged"] == report["hinted"] == report["scored"]


def test_the_run_can_be_looked_at_afterwards(finished: Path) -> None:
    steps = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    page = (finished / "tokens.html").read_text()
    assert "What the hints pushed" in page
    assert page.count('<div class="answer"><span') >= 1
    assert page.count("with the hint:") >= 1
    assert not using(finished)


def wait_for(path: Path, text: str, process: subprocess.Popen[str], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if path.exists() and text in path.read_text():
            return
        assert process.poll() is None, path.read_text() if path.exists() else "ended"
        time.sleep(0.5)
    raise AssertionError(f"{text!r} did not appear within {timeout_s} s:\n{path.read_text()[-4000:]}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_kill_leave_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    state, output, prompts = tmp_path / "state", tmp_path / "output", tmp_path / "prompts.jsonl"
    write_prompts(prompts)
    called = command(state, "demo", "--eval-prompts", str(prompts))
    with output.open("w") as out:
        process = subprocess.Popen(called, env=environment(), stdout=out, stderr=out, text=True)
    # In the middle for SIGINT: requests are being answered. Engines that still load must end as well.
    wait_for(output, "held-out questions" if number == signal.SIGINT else "policy-engine: starting", process, 600)
    time.sleep(5)
    running = below(process.pid)
    assert len(running) >= 6
    process.send_signal(number)
    code = process.wait(180)
    assert code == (128 + number if number == signal.SIGINT else -number)
    assert left(running) == []
    assert using(state) == []
