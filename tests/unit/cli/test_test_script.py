"""How `make test` runs: three lanes side by side, all to their end, and any one's failure is a failure."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Stands for Python: says what it was asked, and ends as the environment says.
FAKE = """#!/bin/sh
echo "ran $*"
case "$*" in
  *"and not engine"*) sleep 0.1; exit "$PROCESSES" ;;
  *"and engine"*) exit "$ENGINES" ;;
  *) sleep 0.2; exit "$UNIT" ;;
esac
"""
ENGINES = "ran -m pytest --durations=15 -m (not slow) and engine --ignore=tests/unit"
UNIT = "ran -m pytest --durations=15 -m not slow tests/unit"
PROCESSES = "ran -m pytest --durations=15 -m (not slow) and not engine --ignore=tests/unit"
NOTHING_CHOSEN = 5


def run(
    directory: Path, *arguments: str, unit: int = 0, processes: int = 0, engines: int = 0
) -> subprocess.CompletedProcess[str]:
    (directory / ".venv" / "bin").mkdir(parents=True)
    (directory / "scripts").mkdir()
    for name in ("test.sh", "jobs.sh"):
        shutil.copy(ROOT / "scripts" / name, directory / "scripts" / name)
    python = directory / ".venv" / "bin" / "python"
    python.write_text(FAKE)
    python.chmod(0o755)
    environment = {**os.environ, "UNIT": str(unit), "PROCESSES": str(processes), "ENGINES": str(engines)}
    command = [str(directory / "scripts" / "test.sh"), "not slow", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("unit", "processes", "engines", "code"),
    [
        (0, 0, 0, 0),
        (1, 0, 0, 1),
        (0, 2, 0, 2),
        (0, 0, 3, 3),
        (1, 2, 3, 3),
        (0, 0, NOTHING_CHOSEN, 0),
        (0, NOTHING_CHOSEN, 0, 0),
        (4, 0, NOTHING_CHOSEN, 4),
    ],
)
def test_all_lanes_run_to_their_end(tmp_path: Path, unit: int, processes: int, engines: int, code: int) -> None:
    done = run(tmp_path, unit=unit, processes=processes, engines=engines)
    assert done.returncode == code, done.stderr
    *ran, summary = done.stdout.splitlines()
    assert ran == [ENGINES, UNIT, PROCESSES]
    shown = [code % NOTHING_CHOSEN for code in (engines, unit, processes)]
    said = r"test.sh: engines ended with {} after \d+ s, unit with {} after \d+ s, processes with {} after \d+ s"
    assert re.fullmatch(said.format(*shown), summary), summary


def test_arguments_are_one_pytests(tmp_path: Path) -> None:
    done = run(tmp_path, "tests/unit/cli", "-x", unit=3)
    assert (done.returncode, done.stdout) == (3, "ran -m pytest --durations=15 -m not slow tests/unit/cli -x\n")
