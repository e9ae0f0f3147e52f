"""What a trainer writes beside its checkpoints: figures of every step, and per-token differences of single answers.

Owns the reading; what they mean stands in `docs/metrics.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hintloop.errors import CommandError

METRICS_FILE, TOKENS_FILE = "metrics.jsonl", "teacher_logprobs.jsonl"


#: No vocabulary is as large; tokenizers take ids of 32 bits.
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class KeptAnswer(msgspec.Struct, frozen=True):
    """One answer of `teacher_logprobs.jsonl`; lists are ``[T]``, nats at temperature 1.

    ``old_logprobs`` without the hint, ``teacher_logprobs`` with it.
    """

    step: int
    turn_id: str
    response_ids: list[TokenId]
    teacher_logprobs: list[float]
    old_logprobs: list[float]
    advantages: list[float]
    hint: str | None = None
    score: int | None = None

    def __post_init__(self) -> None:
        columns = (self.teacher_logprobs, self.old_logprobs, self.advantages)
        if any(len(column) != len(self.response_ids) for column in columns):
            raise ValueError(f"the lists of turn {self.turn_id} have different lengths")


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Lines of a file that may be written to just now, one after the other: a long run's are more than fit at once."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n") and line.strip())


def read_steps(directory: Path) -> list[dict[str, Any]]:
    """Figures of the steps that the weights descend from, in order; empty when nothing was trained there."""
    from hintloop_trainer.metrics.jsonl import surviving

    return surviving(_whole_lines(directory / METRICS_FILE))


def iter_answers(directory: Path) -> Iterator[KeptAnswer]:
    """The answers that were kept, one at a time; none when none were.

    Raises:
        CommandError: the file is of another form.
    """
    path = directory / TOKENS_FILE
    for line in _whole_lines(path):
        try:
            yield msgspec.json.decode(line, type=KeptAnswer)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CommandError(f"{path} cannot be read: {error}; is it of another version?") from error


def read_answers(directory: Path) -> list[KeptAnswer]:
    """All of :func:`iter_answers`."""
    return list(iter_answers(directory))
