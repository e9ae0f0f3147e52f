"""What the hint did to every token: teacher, student and advantage of single answers, kept for people to look at.

Written under `opd.log_teacher_logprobs` for the first steps of a run (counted over all its restarts) to
`teacher_logprobs.jsonl` beside `training.checkpoint_dir`, one JSON object an answer, with a step's answers together::

    {"step": 7, "turn_id": "...", "hint": "..." or null, "score": -1, 0, 1 or null, "response_ids": [T ids],
     "teacher_logprobs": [T], "old_logprobs": [T], "advantages": [T]}

Nats at temperature 1, float32: ``teacher_logprobs`` under the hint, ``old_logprobs`` of the student without it,
before the step. A restart or a return to older weights removes lines of the steps that are lost with it, so no step
stands there twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import structlog
import torch
from hintloop_contract.messages import Sample
from hintloop_contract.tensors import unpack
from numpy.typing import NDArray

from hintloop_trainer.batch import MicroBatch
from hintloop_trainer.losses.inputs import LossInputs
from hintloop_trainer.samples import Held

#: Steps of which answers are kept.
TRACED_STEPS = 100
#: About 40 bytes a token: some six million tokens.
MAX_BYTES = 256 * 1024 * 1024

Values = NDArray[np.float32] | Sequence[float]


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """One answer; all are float32 ``[T]``, nats at temperature 1."""

    turn_id: str
    teacher_logprobs: Values | None
    """``None`` when the teacher did not score it."""
    old_logprobs: Values
    advantages: Values | None
    """As the loss was given them; teacher minus student under a custom loss without advantages, ``None`` where that is
    nothing either."""


def read_traces(batch: MicroBatch, inputs: LossInputs) -> list[TokenTrace]:
    """Traces of the micro-batch's samples."""
    teacher_N, advantages_N = inputs.teacher_logprobs_N, inputs.advantages_N
    if advantages_N is None and teacher_N is not None:
        advantages_N = teacher_N - inputs.old_logprobs_N
    lengths = [example.num_trained for example in batch.examples]
    columns = [_parts(values_N, lengths) for values_N in (teacher_N, inputs.old_logprobs_N, advantages_N)]
    traces = []
    for example, teacher_T, old_T, advantages_T in zip(batch.examples, *columns, strict=True):
        if old_T is not None:
            traces.append(TokenTrace(example.turn_id, teacher_T, old_T, advantages_T))
    return traces


def _parts(values_N: torch.Tensor | None, lengths: list[int]) -> list[NDArray[np.float32] | None]:
    """Values by answer; ``None`` for such as have none, or one that is missing."""
    if values_N is None:
        return [None] * len(lengths)
    values: NDArray[np.float32] = values_N.detach().float().cpu().numpy()
    parts = np.split(values, np.cumsum(lengths)[:-1])
    return [None if np.isnan(part).any() else part.copy() for part in parts]


class TraceFile:
    """Keeps the traces of the run's first :data:`TRACED_STEPS` steps, at most :data:`MAX_BYTES` of them."""

    def __init__(self, path: Path) -> None:
        """Append to ``path``."""
        self._path = path
        self._full = False

    def begin(self, step: int) -> None:
        """Training goes on from ``step``: lines of later steps are of weights that are lost, and come again."""
        self._full = False
        if not self._path.exists():
            return
        aside = self._path.with_name(f".{self._path.name}.partial")
        try:
            with self._path.open("rb") as lines, aside.open("wb") as kept:
                kept.writelines(line for line in lines if _is_of(line, step))
            aside.replace(self._path)
        except OSError as error:
            # A step's lines must not stand there twice.
            self._end(str(error), step)

    def write(self, step: int, traces: Sequence[TokenTrace], held: Mapping[str, Held]) -> None:
        """Append one line a trace that the teacher scored; ``held`` finds the sample by its turn id.

        Where it cannot be written, that is logged, and no more is kept: training goes on.
        """
        lines = [] if step > TRACED_STEPS or self._full else _lines(step, traces, held)
        if not lines:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                fitting = [
                    line
                    for line, end in zip(lines, accumulate(map(len, lines)), strict=True)
                    if file.tell() + end <= MAX_BYTES
                ]
                file.writelines(fitting)
        except OSError as error:
            self._end(str(error), step)
            return
        if len(fitting) < len(lines):
            self._end(f"the file is as large as it may be ({MAX_BYTES} bytes)", step)

    def _end(self, why: str, step: int) -> None:
        self._full = True
        message = "no more per-token differences are kept"
        structlog.get_logger().warning(message, path=str(self._path), detail=why, step=step)


def _lines(step: int, traces: Sequence[TokenTrace], held: Mapping[str, Held]) -> list[bytes]:
    return [
        _line(step, trace, trace.teacher_logprobs, trace.advantages, held[trace.turn_id].sample)
        for trace in traces
        if trace.teacher_logprobs is not None and trace.advantages is not None
    ]


def _line(step: int, trace: TokenTrace, teacher: Values, advantages: Values, sample: Sample) -> bytes:
    line = {
        "step": step,
        "turn_id": trace.turn_id,
        "hint": sample.hint,
        "score": sample.score,
        "response_ids": unpack(sample.response_ids).tolist(),
        "teacher_logprobs": _short(teacher),
        "old_logprobs": _short(trace.old_logprobs),
        "advantages": _short(advantages),
    }
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _short(values: Values) -> list[float]:
    """Nine digits tell every float32 apart; as float64 they would print eight more."""
    return [float(f"{value:.9g}") for value in values]


def _is_of(line: bytes, step: int) -> bool:
    """Whether a line is whole, and of a step up to ``step``."""
    try:
        return line.endswith(b"\n") and int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError, TypeError):
        return False
