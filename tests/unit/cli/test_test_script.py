"""How `make test` runs: unit tests beside the others, both to their end, and either's failure is a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Stands for Python: says what it was asked, and ends as the environment says.
FAKE = """#!/bin/sh
echo "ran $*"
case "$*" in
  *--ignore=tests/unit*) exit "$OTHERS" ;;
  *) sleep 0.2; exit "$UNIT" ;;
esac
"""


def run(directory: Path, *arguments: str, unit: int = 0, others: int = 0) -> subprocess.CompletedProcess[str]:
    (directory / ".venv" / "bin").mkdir(parents=True)
    (directory / "scripts").mkdir()
    for name in ("test.sh", "jobs.sh"):
        shutil.copy(ROOT / "scripts" / name, directory / "scripts" / name)
    python = directory / ".venv" / "bin" / "python"
    python.write_text(FAKE)
    python.chmod(0o755)
    environment = {**os.environ, "UNIT": str(unit), "OTHERS": str(others)}
    command = [str(directory / "scripts" / "test.sh"), "not slow", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(("unit", "others", "code"), [(0, 0, 0), (1, 0, 1), (0, 2, 2), (1, 2, 2)])
def test_both_run_to_their_end(tmp_path: Path, unit: int, others: int, code: int) -> None:
    done = run(tmp_path, unit=unit, others=others)
    assert done.returncode == code
    assert done.stdout.splitlines() == [
        "ran -m pytest -m not slow --ignore=tests/unit",
        "ran -m pytest -m not slow tests/unit",
        f"test.sh: unit tests ended with {unit}, the others (above them) with {others}",
    ]


def test_arguments_are_one_pytests(tmp_path: Path) -> None:
    done = run(tmp_path, "tests/unit/cli", "-x", unit=3)
    assert (done.returncode, done.stdout) == (3, "ran -m pytest -m not slow tests/unit/cli -x\n")
