"""The tools that check `deploy/`, in an environment of their own, and the services' real registries."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .exported import Exported, exported_by_services

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"


class Tools:
    """Commands of `scripts/deploy-tools.sh`."""

    def __init__(self, folder: Path) -> None:
        self._bin = folder / "bin"

    def run(self, name: str, *words: str | Path, given: str | None = None) -> str:
        """Run one; its output. What it finds wrong is the failure's text."""
        command = self._bin / name
        if not command.exists():
            message = f"{name} is missing: Debian's prometheus packages could not be fetched (scripts/deploy-tools.sh)"
            # On a machine that can have them a check that does not run is a failure.
            if os.environ.get("CI"):
                pytest.fail(message, pytrace=False)
            pytest.skip(message)
        done = subprocess.run(
            [command, *words], input=given, capture_output=True, text=True, check=False, timeout=240, cwd=ROOT
        )
        if done.returncode:
            pytest.fail(f"{name} {' '.join(map(str, words))}:\n{done.stdout}{done.stderr}", pytrace=False)
        return done.stdout

    def path(self, name: str) -> Path:
        return self._bin / name


@pytest.fixture(scope="session")
def tools() -> Tools:
    done = subprocess.run([ROOT / "scripts/deploy-tools.sh"], capture_output=True, text=True, check=False, timeout=580)
    if done.returncode:
        pytest.fail(f"scripts/deploy-tools.sh ended with {done.returncode}:\n{done.stderr[-3000:]}", pytrace=False)
    return Tools(Path(done.stdout.strip().splitlines()[-1]))


@pytest.fixture(scope="session")
def exported() -> Exported:
    return exported_by_services()


#: A selector: the metric's name (none when a matcher gives it), and its matchers.
Selector = tuple[str | None, list[tuple[str, str, str]]]


@pytest.fixture(scope="session")
def selectors_of(tools: Tools) -> Callable[[list[str]], list[list[Selector]]]:
    """The selectors of each PromQL expression."""

    def read(expressions: list[str]) -> list[list[Selector]]:
        script = Path(__file__).with_name("promql_selectors.py")
        found: list[list[Any]] = json.loads(tools.run("python", script, given=json.dumps(expressions)))
        return [[(name, [(m[0], m[1], m[2]) for m in matchers]) for name, matchers in each] for each in found]

    return read
