"""A run as it was written: figures of every step, and per-token differences of the first hundred.

Owns the reading of `metrics.jsonl` and `teacher_logprobs.jsonl`; what they mean stands in the trainer's README.
Legend: N = tokens of all answers that were kept, end to end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hintloop.errors import CommandError

METRICS_FILE, TOKENS_FILE = "metrics.jsonl", "teacher_logprobs.jsonl"


class KeptAnswer(msgspec.Struct, frozen=True):
    """One answer of `teacher_logprobs.jsonl`; lists are ``[T]``, nats at temperature 1."""

    step: int
    turn_id: str
    response_ids: list[int]
    teacher_logprobs: list[float]
    old_logprobs: list[float]
    advantages: list[float]
    hint: str | None = None
    score: int | None = None


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
    from hintloop_trainer.metrics.jsonl import surviving

    path = directory / METRICS_FILE
    if not path.is_file():
        raise CommandError(
            f"{str(directory)!r} holds no {METRICS_FILE}: nothing was trained there yet. Give the directory in which "
            "training.checkpoint_dir lies (`.hintloop`, `.hintloop/demo`)"
        )
    steps = surviving(path.read_bytes().splitlines())
    if not steps:
        raise CommandError(f"{path} holds no step yet; wait for the first one")
    answers = [answer for answer in _answers(directory / TOKENS_FILE) if answer.step <= first]
    scores: dict[int, list[int]] = {}
    for answer in answers:
        if answer.score is not None:
            scores.setdefault(answer.step, []).append(answer.score)
    hints = Counter(answer.hint for answer in answers if answer.hint is not None)
    return Run(directory.resolve().name, directory, steps, _joined(answers), len(answers), hints, scores)


def _answers(path: Path) -> list[KeptAnswer]:
    if not path.is_file():
        return []
    # The last line may be written to just now.
    lines = [line for line in path.read_bytes().split(b"\n")[:-1] if line.strip()]
    try:
        return [msgspec.json.decode(line, type=KeptAnswer) for line in lines]
    except msgspec.MsgspecError as error:
        raise CommandError(f"{path} cannot be read: {error}; is it of another version?") from error


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
