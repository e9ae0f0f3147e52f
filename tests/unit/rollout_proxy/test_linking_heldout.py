"""Linking over request sequences that were written from what agents send, not from how the linker works."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hintloop_rollout_proxy.linking import LinkerOptions
from hintloop_rollout_proxy.linking.cases import read_file
from hintloop_rollout_proxy.linking.report import report_on

CASES = sorted((Path(__file__).parents[2] / "fixtures" / "cases" / "heldout").glob("*.json"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    expected = json.loads(path.read_text())["expected"]
    report = report_on(*read_file(path), LinkerOptions(max_turns_per_session=1000))
    assert msgspec.to_builtins(report) | {"name": None} == expected | {"name": None}


def test_cases_are_there() -> None:
    assert len(CASES) >= 160
