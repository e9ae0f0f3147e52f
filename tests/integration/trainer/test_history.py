"""What the trainer leaves behind for people: each trained answer's tokens, steps, versions. Never in training's way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import structlog
from hintloop_contract.errors import DependencyError
from hintloop_contract.history import HistoryEntry, Note, StepFigures, Trained, VersionNote
from hintloop_contract.messages import Sample
from hintloop_contract.tensors import unpack
from hintloop_trainer import history_part

from .conftest import Bench


def noted(bench: Bench) -> list[HistoryEntry]:
    return bench.background.run(bench.broker.history(count=10_000))


def notes(bench: Bench, kind: type[Any]) -> list[Any]:
    return [entry.message for entry in noted(bench) if isinstance(entry.message, kind)]


def test_every_trained_answer_is_told_with_its_tokens(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    samples = [make_sample(turn) for turn in range(4)]
    bench.feed(samples)
    bench.train(bench.config(opd={"log_teacher_logprobs": True}))

    trained = {note.turn_id: note for note in notes(bench, Trained)}
    assert sorted(trained) == [sample.turn_id for sample in samples]
    lines = [json.loads(line) for line in (bench.folder / "teacher_logprobs.jsonl").read_text().splitlines()]
    assert len(lines) == 4
    for line in lines:
        note = trained[line["turn_id"]]
        assert note.step == line["step"]
        assert unpack(note.advantages) == pytest.approx(line["advantages"])
        assert unpack(note.student_logprobs) == pytest.approx(line["old_logprobs"])


def test_steps_and_versions_are_told_in_order(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    progress, _ = bench.train(bench.config())
    steps = notes(bench, StepFigures)
    logged = [json.loads(line) for line in (bench.folder / "metrics.jsonl").read_text().splitlines()]
    assert [(note.step, note.version) for note in steps] == [(line["step"], line["version"]) for line in logged]
    assert [note.figures["loss"] for note in steps] == [line["loss"] for line in logged]
    assert all("effective_loss" not in note.figures for note in steps), "words are no figures"
    versions = notes(bench, VersionNote)
    assert [(note.version, note.step) for note in versions] == [
        (released.version, released.step) for released in progress.lineage.versions
    ]
    assert [note.reason for note in versions] == ["start", "step", "step"]
    assert versions[1].parent == versions[0].version and versions[0].weights_hash
    kinds = [entry.kind for entry in noted(bench)]
    assert kinds == ["version", *["version", "trained", "trained", "step"] * 2]
    assert [note.version for note in notes(bench, Trained)] == [versions[1].version] * 2 + [versions[2].version] * 2


def test_a_second_pass_tells_of_no_answer_again(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(turn) for turn in range(2)])
    bench.train(bench.config(training={"num_epochs": 2, "max_steps": 2}))
    assert len(notes(bench, Trained)) == 2 and len(notes(bench, StepFigures)) == 2


def test_a_long_step_is_told_without_all_its_tokens(
    bench: Bench, make_sample: Callable[..., Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [make_sample(turn) for turn in range(2)]
    monkeypatch.setattr(history_part, "MAX_TOKENS", len(samples[0].response_ids))
    bench.feed(samples)
    bench.train(bench.config(training={"max_steps": 1}))
    assert [note.advantages is None for note in notes(bench, Trained)] == [False, True]


@pytest.mark.parametrize("failing", ["raises", "hangs"])
def test_a_history_that_cannot_be_written_stops_no_step(
    bench: Bench, make_sample: Callable[..., Sample], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    async def remember(notes: Sequence[Note], **_: Any) -> None:
        if failing == "raises":
            raise DependencyError("redis", "gone")
        await asyncio.sleep(3600)

    monkeypatch.setattr(bench.broker, "remember", remember)
    monkeypatch.setattr(history_part, "LAST_WAIT_S", 0.1)
    bench.feed([make_sample(turn) for turn in range(6)])
    with structlog.testing.capture_logs() as logs:
        progress, _ = bench.train(bench.config(training={"max_steps": 3}))
    assert progress.step == 3
    events = [entry["event"] for entry in logs if entry["event"].startswith("history")]
    said = "not written" if failing == "raises" else "left out"
    assert len(events) >= 3 and all(said in event for event in events)


def test_off_nothing_is_noted_and_no_token_is_collected(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(turn) for turn in range(2)])
    _, learner = bench.train(bench.config(training={"max_steps": 1}, console={"history": False}))
    assert noted(bench) == [] and not learner.objective.traced


def test_advantages_of_scores_are_told_too(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(turn, score=1 if turn else -1) for turn in range(2)])
    bench.train(bench.config(advantage={"estimator": "grpo"}, training={"max_steps": 1}))
    told = {note.turn_id: np.unique(unpack(note.advantages)).tolist() for note in notes(bench, Trained)}
    assert told == {"turn-0000": [-1.0], "turn-0001": [1.0]}
