"""A run as it was written: figures of every step, and per-token differences of the first hundred.

Legend: N = tokens of all answers that were kept, end to end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hintloop.errors import CommandError
from hintloop.trainer_files import METRICS_FILE, KeptAnswer, read_answers, read_steps


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


def read_run(directory: Path, first: int) -> Run:
    """Read the run in ``directory``, with the tokens of its first ``first`` steps.

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
    answers = [answer for answer in read_answers(directory) if answer.step <= first]
    scores: dict[int, list[int]] = {}
    for answer in answers:
        if answer.score is not None:
            scores.setdefault(answer.step, []).append(answer.score)
    hints = Counter(answer.hint for answer in answers if answer.hint is not None)
    return Run(directory.resolve().name, directory, steps, _joined(answers), len(answers), hints, scores)


def _joined(answers: list[KeptAnswer]) -> Tokens:
    def column(name: str, dtype: type) -> NDArray[Any]:
        return np.asarray([value for answer in answers for value in getattr(answer, name)], dtype)

    lengths = [len(answer.response_ids) for answer in answers]
    return Tokens(
        ids=column("response_ids", np.int64),
        advantages=column("advantages", np.float64),
        gaps=column("teacher_logprobs", np.float64) - column("old_logprobs", np.float64),
        positions=np.concatenate([np.arange(length) for length in lengths]) if lengths else np.zeros(0, np.int64),
        steps=np.repeat([answer.step for answer in answers], lengths).astype(np.int64),
    )
