"""A side's findings as JSON lines: exactly one a turn of the file, in its order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from hintloop_contract.history import Trained
from hintloop_contract.messages import Sample
from hintloop_contract.tensors import PackedArray, unpack

from hintloop.replay.store import Row, Store
from hintloop.replay.until import Until
from hintloop.replay.writing import Written


def outcome(row: Row, until: Until) -> str:
    """`dropped`, `left` (not used up), or the furthest that it was to come: `judged`, `taught` or `trained`."""
    if row.reason is not None:
        return "dropped"
    if row.left_over is not None:
        return "left"
    return {Until.JUDGE: "judged", Until.TEACHER: "taught", Until.TRAINER: "trained"}[until]


def write_results(store: Store, side: str, until: Until, path: Path) -> int:
    """Write a side's lines to ``path``; how many there are.

    Raises:
        CommandError: it cannot be written.
    """
    number = 0
    encoder = msgspec.json.Encoder()
    with Written(path) as written:
        for row in store.rows(side):
            written.write(encoder.encode(document(row, until)) + b"\n")
            number += 1
    return number


def document(row: Row, until: Until) -> dict[str, Any]:
    """One line: only what was found out."""
    found: dict[str, Any] = {"turn_id": row.turn_id, "line": row.line, "outcome": outcome(row, until)}
    if row.reason is not None:
        found |= {"stage": row.stage, "reason": row.reason, "detail": row.detail}
    if row.left_over is not None:
        found["detail"] = row.left_over
    if row.judgement is not None:
        found["judgement"] = msgspec.to_builtins(row.judgement)
    if row.sample is not None:
        found["sample"] = _sample(row.sample)
    if row.trained is not None:
        found["trained"] = _trained(row.trained)
    return found


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        "score": sample.score,
        "hint": sample.hint,
        "teacher_model": sample.teacher_model,
        "num_hinted_prompt_tokens": sample.num_hinted_prompt_tokens,
        "teacher_logprobs": _listed(sample.teacher_logprobs),
    }


def _trained(note: Trained) -> dict[str, Any]:
    return {
        "step": note.step,
        "version": note.version,
        "advantages": _listed(note.advantages),
        "student_logprobs": _listed(note.student_logprobs),
    }


def _listed(packed: PackedArray | None) -> list[float] | None:
    return None if packed is None else [float(f"{value:.9g}") for value in unpack(packed).tolist()]
