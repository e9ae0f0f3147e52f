"""The set-up scripts in a clone where Python, pip and the engines are stand-ins that take their time."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]
SERVICES = ("rollout-proxy", "judge", "teacher", "trainer", "console")
PACKAGES = ["contract", "cli", *(f"services/{name}" for name in SERVICES)]

#: Is `python3.11` on the path, and what it puts into an environment. Its children have the clone in their arguments.
PYTHON = """#!/usr/bin/env bash
echo "$*" >> "$CLONE/calls"
case "$*" in
  "-m venv .venv") sleep 0.3 && mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *scripts/requirements.txt*)
    if [ -f "$CLONE/pip-fails" ]; then exit 7; fi
    if [ -f "$CLONE/pip-takes-long" ]; then
      tail -f /dev/null "$CLONE/calls" & tail -f "$CLONE/calls"
    fi ;;
esac
"""
ENGINE = """#!/usr/bin/env bash
echo "engine installing" >> "$CLONE/calls"
if [ -f "$CLONE/engine-fails" ]; then exit 9; fi
if [ -f "$CLONE/engine-takes-long" ]; then tail -f /dev/null "$CLONE/calls" & tail -f "$CLONE/calls"; fi
echo /an/environment
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "constraints").mkdir()
    (tmp_path / "constraints/services.txt").write_text("torch==2\n")
    for package in PACKAGES:
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "pyproject.toml").touch()
    executable(tmp_path / "bin/python3.11", PYTHON)
    executable(tmp_path / "bin/g++", "#!/bin/sh\n")
    executable(tmp_path / "engines/vllm/install.sh", ENGINE)
    executable(tmp_path / "engines/models/prepare.sh", "#!/bin/sh\necho /a/model\n")
    (tmp_path / "calls").touch()
    yield tmp_path
    # A test that fails must leave nothing behind either.
    for process in using(tmp_path):
        process.kill()


def start(clone: Path, *command: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a terminal would; a Ctrl-C must not be ignored because pytest ignores it."""
    return subprocess.Popen(
        ["env", "--default-signal=INT", *command],
        cwd=clone,
        env={**os.environ, "CLONE": str(clone), "PATH": f"{clone / 'bin'}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(clone: Path, *command: str) -> tuple[int, str]:
    process = start(clone, *command)
    output, _ = process.communicate(timeout=180)
    return process.returncode, output


def calls(clone: Path, part: str) -> int:
    return sum(part in line for line in (clone / "calls").read_text().splitlines())


def using(clone: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(clone) in part for part in process.info["cmdline"] or []):
            found.append(process)
    return found


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_nothing_is_done_twice_and_nothing_said_then(clone: Path) -> None:
    code, output = run(clone, "scripts/prepare.sh", "vllm")
    assert code == 0, output
    for stage in ("virtual environment", "build tools", "packages", "bytecode", "done after"):
        assert stage in output
    assert run(clone, "scripts/setup.sh") == (0, "")
    assert calls(clone, "-m venv") == 1


@pytest.mark.parametrize(
    "changed", ["constraints/services.txt", "scripts/requirements.txt", "services/judge/pyproject.toml"]
)
def test_another_recipe_makes_another_environment(clone: Path, changed: str) -> None:
    assert run(clone, "scripts/setup.sh")[0] == 0
    with (clone / changed).open("a") as recipe:
        recipe.write("# changed\n")
    assert run(clone, "scripts/setup.sh")[0] == 0
    assert calls(clone, "-m venv") == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("whole_group", [True, False])
def test_an_interrupted_set_up_leaves_no_process_and_no_environment_that_counts(
    clone: Path, number: signal.Signals, whole_group: bool
) -> None:
    for name in ("pip-takes-long", "engine-takes-long"):
        (clone / name).touch()
    process = start(clone, "scripts/prepare.sh", "vllm")
    wait_until(lambda: len(using(clone)) >= 4, "both halves run")
    # A terminal signals the whole foreground group, `kill` a single process.
    os.killpg(process.pid, number) if whole_group else process.send_signal(number)
    process.communicate(timeout=120)
    assert using(clone) == []
    assert process.returncode == 128 + number
    assert not (clone / ".venv/hintloop-recipe").exists()
    (clone / "pip-takes-long").unlink()
    assert run(clone, "scripts/setup.sh")[0] == 0
    assert calls(clone, "-m venv") == 2


@pytest.mark.parametrize(("fails", "lasts", "code"), [("pip", "engine", 7), ("engine", "pip", 9)])
def test_when_one_half_fails_the_other_is_stopped(clone: Path, fails: str, lasts: str, code: int) -> None:
    (clone / f"{fails}-fails").touch()
    (clone / f"{lasts}-takes-long").touch()
    returned, output = run(clone, "scripts/prepare.sh", "vllm")
    assert using(clone) == []
    assert returned == code
    assert "failed" in output


def test_two_set_ups_of_one_clone_wait_for_one_another(clone: Path) -> None:
    first, second = start(clone, "scripts/setup.sh"), start(clone, "scripts/setup.sh")
    outputs = [first.communicate(timeout=180)[0], second.communicate(timeout=180)[0]]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert calls(clone, "-m venv") == 1


def test_an_unknown_engine_is_refused_before_anything_is_made(clone: Path) -> None:
    code, output = run(clone, "scripts/prepare.sh", "vlm")
    assert code == 2
    assert "'vlm'" in output
    assert "vllm or sglang" in output
    assert not (clone / ".venv").exists()
