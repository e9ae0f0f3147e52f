"""Asks the doctor about a deployment, and keeps what it said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.deployment import Deployment
from tests.faults.services import clean_environment

#: Where reports are kept, by name; nothing is kept where it is not set.
KEEP = "HINTLOOP_FAULT_REPORTS"
TIMEOUT_S = 120.0
CLONE = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Said:
    """One report. ``causes``: every cause in it, in the chain's order."""

    first: str | None
    causes: list[str]
    code: int
    seconds: float
    text: str

    def __str__(self) -> str:
        return f"first {self.first}, all {self.causes}, exit code {self.code}, {self.seconds:.1f} s\n{self.text}"


def ask(stack: Deployment, name: str) -> Said:
    """What `hintloop doctor --json` says of the stack as it is configured now."""
    command = [sys.executable, "-m", "hintloop", "doctor", "--json", "--state-dir", str(stack.state_dir)]
    for file in (stack.base, *stack.given.files):
        command += ["--config", str(file)]
    for file in stack.given.settings:
        command += ["--settings", str(file)]
    started = time.monotonic()
    done = subprocess.run(
        command,
        env={**clean_environment(), **stack.given.env},
        cwd=stack.folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stdout, done.stderr[-4000:]
    said = read(done.stdout, done.returncode, time.monotonic() - started)
    keep(name, said)
    return said


def read(text: str, code: int, seconds: float) -> Said:
    """A report as it was printed."""
    report = json.loads(text)
    causes = [finding["cause"] for station in report["stations"] for finding in station["findings"] if finding["cause"]]
    return Said(report["first_cause"], causes, code, seconds, text)


def keep(name: str, said: Said) -> None:
    """Write the report as it was printed, but for the clone's own path."""
    folder = os.environ.get(KEEP)
    if not folder:
        return
    path = Path(folder) / f"{slug(name)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(said.text.replace(str(CLONE), "."), encoding="utf-8")


def slug(name: str) -> str:
    """A file's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def note(row: dict[str, Any]) -> None:
    """Add a row to the matrix that is being measured."""
    folder = os.environ.get(KEEP)
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with (Path(folder) / "matrix.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
