"""The doctor's benchmark counts what was named, and what was raised without a fault."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.doctor import matrix
from benchmarks.doctor.__main__ import goals_of

ROWS = [
    {"fault": "a", "variant": "primary", "wanted": "x", "named": "y", "causes": ["y"], "seconds": 3.0},
    {"fault": "a", "variant": "second", "wanted": "x", "named": "x", "causes": ["x"], "seconds": 70.0},
    {"fault": "b", "variant": "primary", "wanted": "z", "named": None, "causes": [], "seconds": 2.0},
    {"healthy": "before", "raised": [], "code": 0, "seconds": 4.0},
    {"healthy": "after", "raised": ["x", "y"], "code": 3, "seconds": 4.0},
    {"fault": "a", "variant": "primary", "wanted": "x", "named": "x", "causes": ["x"], "seconds": 4.0},
]


def measured(folder: Path) -> matrix.Matrix:
    (folder / "matrix.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return matrix.read(folder)


def test_the_last_measurement_of_a_row_counts(tmp_path: Path) -> None:
    found = measured(tmp_path)
    assert [(row["fault"], row["variant"], row["named"]) for row in found.rows] == [
        ("a", "primary", "x"),
        ("a", "second", "x"),
        ("b", "primary", None),
    ]
    assert (found.num_named, found.num_false_alarms, found.slowest_s) == (2, 2, 70.0)


def test_goals_are_missed_by_what_was_not_named(tmp_path: Path) -> None:
    assert [goal.met for goal in goals_of(measured(tmp_path))] == [False, False, False]
    assert [goal.met for goal in goals_of(matrix.Matrix())] == [False, False, False]


def test_the_page_shows_both_variants(tmp_path: Path) -> None:
    lines = matrix.markdown(measured(tmp_path).rows, ["a", "b", "c"])
    assert lines[2:] == [
        "| a | `x` | `x` |",
        "| b | **nothing**, not `z` | not measured |",
        "| c | not measured | not measured |",
    ]
