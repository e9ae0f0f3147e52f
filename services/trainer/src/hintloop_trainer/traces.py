"""What the hint did to every token: teacher, student and advantage of single answers, kept for people to look at.

Written under `opd.log_teacher_logprobs` for the first steps of a run, one JSON object an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from hintloop_contract.tensors import unpack

from hintloop_trainer.batch import MicroBatch
from hintloop_trainer.losses.inputs import LossInputs
from hintloop_trainer.samples import Held

#: Steps of which answers are kept.
TRACED_STEPS = 100


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """One answer that the teacher scored; all lists are ``[T]``, nats at temperature 1."""

    turn_id: str
    teacher_logprobs: list[float]
    old_logprobs: list[float]
    advantages: list[float]
    """As the loss was given them; teacher minus student under a custom loss without advantages."""


def read_traces(batch: MicroBatch, inputs: LossInputs) -> list[TokenTrace]:
    """Traces of the micro-batch's samples that the teacher scored."""
    teacher_N = inputs.teacher_logprobs_N
    if teacher_N is None:
        return []
    advantages_N = inputs.advantages_N if inputs.advantages_N is not None else teacher_N - inputs.old_logprobs_N
    traces = []
    for index, example in enumerate(batch.examples):
        rows_N = inputs.sample_N == index
        teacher_T = teacher_N[rows_N]
        if not bool(teacher_T.isnan().any()):
            old_T, advantages_T = inputs.old_logprobs_N[rows_N], advantages_N[rows_N]
            traces.append(TokenTrace(example.turn_id, *map(_listed, (teacher_T, old_T, advantages_T))))
    return traces


def _listed(values_T: torch.Tensor) -> list[float]:
    listed: list[float] = values_T.detach().float().cpu().tolist()
    return listed


class TraceFile:
    """Appends the traces of the first :data:`TRACED_STEPS` steps."""

    def __init__(self, path: Path) -> None:
        """Append to ``path``."""
        self._path = path

    def write(self, step: int, traces: Sequence[TokenTrace], held: Mapping[str, Held]) -> None:
        """Append one line a trace; ``held`` finds the sample by its turn id."""
        if step > TRACED_STEPS or not traces:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            for trace in traces:
                sample = held[trace.turn_id].sample
                line = {
                    "step": step,
                    "turn_id": trace.turn_id,
                    "hint": sample.hint,
                    "score": sample.score,
                    "response_ids": unpack(sample.response_ids).tolist(),
                    "teacher_logprobs": trace.teacher_logprobs,
                    "old_logprobs": trace.old_logprobs,
                    "advantages": trace.advantages,
                }
                file.write(json.dumps(line) + "\n")
