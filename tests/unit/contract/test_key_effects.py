"""Every key of the schema has a test that sees its effect, or is refused. `key_effects` says which.

That a test would notice is itself tested: with the key's effect taken away (`tests.frozen_key`) it must fail.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest
from hintloop_contract.config import Config

from tests.frozen_key import sections_of

from .key_effects import FOR_PEOPLE, IN_PROCESSES_OF_THEIR_OWN, OBSERVED, REFUSED

ROOT = Path(__file__).parents[3]
TESTS_FAILED = 1


@functools.cache
def functions_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_key_stands_in_one_of_the_tables() -> None:
    tables = [*OBSERVED, *IN_PROCESSES_OF_THEIR_OWN, *REFUSED, *FOR_PEOPLE]
    assert sorted(tables) == sorted(sections_of(Config))


@pytest.mark.parametrize("table", [OBSERVED, IN_PROCESSES_OF_THEIR_OWN, REFUSED])
def test_the_tests_that_are_named_are_there(table: dict[str, str]) -> None:
    absent = {}
    for key, test in table.items():
        name, _, function = test.partition("::")
        path = ROOT / "tests" / name
        if not path.is_file() or function not in functions_in(path):
            absent[key] = test
    assert absent == {}


@pytest.mark.slow
@pytest.mark.parametrize("key", OBSERVED)
def test_without_its_effect_the_test_fails(key: str) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "tests.frozen_key", "--frozen-key", key, "--timeout", "120"]
    command += ["-q", "-x", "-p", "no:cacheprovider", f"tests/{OBSERVED[key]}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == TESTS_FAILED, done.stdout[-3000:] + done.stderr[-1000:]
