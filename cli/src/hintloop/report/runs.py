"""A run as it was written: figures of every step, and per-token differences of the first hundred.

Legend: N = tokens of all answers that were kept, end to end.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hintloop.errors import CommandError
from hintloop.report.pipeline import Pipeline, Preference, read_pipeline, read_preference
from hintloop.trainer_files import METRICS_FILE, KeptAnswer, iter_answers, read_steps


@dataclass(frozen=True, slots=True)
class Tokens:
    """Every kept token; all arrays ``[N]``."""

    ids: NDArray[np.int64]
    advantages: NDArray[np.float64]
    """As the loss was given them, nats."""
    gaps: NDArray[np.float64]
    """Teacher with the hint minus student without, nats, not clipped."""
    positions: NDArray[np.int64]
    """Place in the answer, from 0."""
    steps: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    name: str
    directory: Path
    steps: list[dict[str, Any]]
    """Figures of the steps that the weights descend from, in order."""
    tokens: Tokens
    num_answers: int
    hints: Counter[str] = field(default_factory=Counter)
    scores: dict[int, list[int]] = field(default_factory=dict)
    """Scores of the kept answers by step."""
    first: int = 0
    """Steps whose tokens are looked at."""
    pipeline: Pipeline | None = None
    """What became of all turns; ``None`` where that is not known any more."""
    preference: Preference | None = None
    """How the demo's user liked its answers; ``None`` for other runs."""

    @property
    def first_steps(self) -> str:
        """Which steps' tokens are looked at, in words."""
        last = min(self.first, int(self.steps[-1]["step"])) if self.steps else self.first
        return f"first {last} step(s)"

    def figure(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Steps and values of one figure, where it is a number."""
        found = [(step["step"], step[name]) for step in self.steps if isinstance(step.get(name), int | float)]
        numbers, values = zip(*found, strict=True) if found else ((), ())
        return np.asarray(numbers, np.float64), np.asarray(values, np.float64)

    def last(self, name: str) -> Any:
        """The newest value of one figure; ``None`` where there is none."""
        return next((step[name] for step in reversed(self.steps) if step.get(name) is not None), None)

    @property
    def drops(self) -> dict[str, int]:
        """Samples that the trainer dropped, by reason."""
        newest = self.steps[-1] if self.steps else {}
        return {
            name.removeprefix("dropped_"): int(n) for name, n in newest.items() if name.startswith("dropped_") and n
        }


def read_run(directory: Path, first: int, *, name: str | None = None) -> Run:
    """Read the run in ``directory``, with the tokens of its first ``first`` steps; ``name``: what it is called.

    Raises:
        CommandError: nothing was trained there, or a file is no run's.
    """
    path = directory / METRICS_FILE
    if not path.is_file():
        raise CommandError(
            f"{str(directory)!r} holds no {METRICS_FILE}: nothing was trained there yet. Give the directory in which "
            "training.checkpoint_dir lies (`.hintloop`, `.hintloop/demo`)"
        )
    steps = read_steps(directory)
    if not steps:
        raise CommandError(f"{path} holds no step yet; wait for the first one")
    kept = _Kept()
    for answer in iter_answers(directory):
        if answer.step <= first:
            kept.add(answer)
    found = kept.run(name or directory.resolve().name, directory, steps)
    return replace(found, first=first, pipeline=read_pipeline(directory), preference=read_preference(directory))


class _Kept:
    """Kept answers end to end: as numbers they take a fraction of what their lists would."""

    def __init__(self) -> None:
        self.columns = {name: array(kind) for name, kind in _COLUMNS.items()}
        self.lengths: list[int] = []
        self.steps: list[int] = []
        self.hints: Counter[str] = Counter()
        self.scores: dict[int, list[int]] = {}

    def add(self, answer: KeptAnswer) -> None:
        """Take one answer in."""
        for name, column in self.columns.items():
            column.extend(getattr(answer, name))
        self.lengths.append(len(answer.response_ids))
        self.steps.append(answer.step)
        if answer.score is not None:
            self.scores.setdefault(answer.step, []).append(answer.score)
        if answer.hint is not None:
            self.hints[answer.hint] += 1

    def run(self, name: str, directory: Path, steps: list[dict[str, Any]]) -> Run:
        """The run that they belong to."""
        return Run(name, directory, steps, self._tokens(), len(self.lengths), self.hints, self.scores)

    def _tokens(self) -> Tokens:
        found = {name: np.asarray(column) for name, column in self.columns.items()}
        return Tokens(
            ids=found["response_ids"].astype(np.int64),
            advantages=found["advantages"].astype(np.float64),
            gaps=found["teacher_logprobs"].astype(np.float64) - found["old_logprobs"].astype(np.float64),
            positions=np.concatenate([np.zeros(0, np.int64), *map(np.arange, self.lengths)]),
            steps=np.repeat(self.steps, self.lengths).astype(np.int64),
        )


#: Columns of a kept answer, and how their numbers are held.
_COLUMNS = {"response_ids": "q", "advantages": "d", "teacher_logprobs": "d", "old_logprobs": "d"}
