"""The file of per-token differences: of the first steps, never twice, never too large."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import structlog
from hintloop_trainer import traces
from hintloop_trainer.samples import Held
from hintloop_trainer.traces import TRACED_STEPS, TokenTrace, TraceFile

from .conftest import make_sample


def write(file: TraceFile, step: int, turn: int = 0) -> None:
    sample = make_sample(turn)
    entry: Any = None
    trace = TokenTrace(sample.turn_id, [-0.1234567891234] * 4, [-2.0] * 4, [1.8765432108766] * 4)
    file.write(step, [trace], {sample.turn_id: Held(sample, entry)})


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_only_the_first_steps_are_kept(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "traces.jsonl")
    file.begin(0)
    for step in (1, TRACED_STEPS, TRACED_STEPS + 1):
        write(file, step)
    assert steps(tmp_path / "traces.jsonl") == [1, TRACED_STEPS]


def test_steps_that_are_lost_go_with_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    file = TraceFile(path)
    file.begin(0)
    for step in (1, 2, 3):
        write(file, step)
    # Killed in the middle of a line.
    path.write_bytes(path.read_bytes() + b'{"step": 1, "turn_')
    again = TraceFile(path)
    again.begin(2)
    write(again, 3, turn=7)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line["turn_id"]) for line in found] == [
        (1, "turn-0000"),
        (2, "turn-0000"),
        (3, "turn-0007"),
    ]


def test_the_file_stays_within_its_bound_and_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "traces.jsonl"
    file = TraceFile(path)
    write(file, 1)
    size = path.stat().st_size
    monkeypatch.setattr(traces, "MAX_BYTES", 3 * size)
    with structlog.testing.capture_logs() as logs:
        for step in range(2, 9):
            write(file, step)
    assert steps(path) == [1, 2, 3]
    assert [entry["step"] for entry in logs] == [4]


def test_where_it_cannot_be_written_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "full").write_text("a file where the directory should be")
    file = TraceFile(tmp_path / "full" / "traces.jsonl")
    with structlog.testing.capture_logs() as logs:
        file.begin(0)
        for step in (1, 2):
            write(file, step)
    assert [(entry["log_level"], entry["step"]) for entry in logs] == [("warning", 1)]


def test_values_are_those_of_float32(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    write(TraceFile(path), 1)
    (line,) = [json.loads(text) for text in path.read_text().splitlines()]
    assert line["teacher_logprobs"] == [-0.123456789] * 4
    assert line["advantages"] == pytest.approx([1.8765432108766] * 4, rel=1e-8)
