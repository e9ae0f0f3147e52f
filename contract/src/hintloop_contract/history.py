"""What finished hops leave behind for people to look at: the stream `history`, its kinds and the trainer's notes.

Written inside the scripts that commit a hop, so that it costs no round trip, and bounded there by entries and bytes.
It is no part of the signal: nothing waits for it, nothing is derived from it, and it may be off.
Legend: T = response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from hintloop_contract.messages import Drop, JudgedTurn, LinkedTurn, Sample, TurnRecord
from hintloop_contract.tensors import PackedArray

if TYPE_CHECKING:
    from hintloop_contract.config.console import ConsoleSection


class HistoryKind(StrEnum):
    """What an entry tells."""

    TURN = "turn"  # a turn was linked; its record comes along
    JUDGED = "judged"
    SAMPLE = "sample"
    DROP = "drop"
    TRAINED = "trained"  # a step was made with this turn
    STEP = "step"
    GATE = "gate"
    VERSION = "version"


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A step was made with this turn; told once, at its first pass.

    Example: ``Trained(turn_id="0193…", step=7, advantages=pack([0.4, -0.1], "float32"), student_logprobs=…)``.
    """

    turn_id: str
    step: int
    version: int | None = None
    """The version released with this step; ``None`` when the step was not published."""
    advantages: PackedArray | None = None
    """float32 ``[T]``, nats, as the loss was given them; ``None`` under a loss without."""
    student_logprobs: PackedArray | None = None
    """float32 ``[T]``, nats at temperature 1, of the student before the step."""


class StepFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one step, named as in the trainer's metrics.

    Example: ``StepFigures(step=7, version=8, figures={"loss": 0.12, "entropy": 1.9})``.
    """

    step: int
    version: int | None = None
    figures: dict[str, float]


class GateDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What the release gate said of the weights of one step.

    Example: ``GateDecision(version=9, step=8, outcome="held", reasons=("answers …",), figures={"gate_entropy": 0.4})``.
    """

    version: int
    step: int
    outcome: str
    """``released`` or ``held``."""
    reasons: tuple[str, ...] = ()
    figures: dict[str, float] = msgspec.field(default_factory=dict)


class VersionNote(msgspec.Struct, frozen=True, kw_only=True):
    """A version was released.

    Example: ``VersionNote(version=9, step=8, parent=8, run="0193…", weights_hash="ab12…")``.
    """

    version: int
    step: int
    parent: int | None = None
    run: str = ""
    weights_hash: str = ""
    reason: str = "step"
    """Why: ``start`` (of a run), ``step``, ``rollback`` or ``drill``."""


#: What the trainer notes by itself.
Note = Trained | StepFigures | GateDecision | VersionNote
#: What an entry of the history carries.
Told = LinkedTurn | JudgedTurn | Sample | Drop | Trained | StepFigures | GateDecision | VersionNote

CARRIED: dict[HistoryKind, type[Told]] = {
    HistoryKind.TURN: LinkedTurn,
    HistoryKind.JUDGED: JudgedTurn,
    HistoryKind.SAMPLE: Sample,
    HistoryKind.DROP: Drop,
    HistoryKind.TRAINED: Trained,
    HistoryKind.STEP: StepFigures,
    HistoryKind.GATE: GateDecision,
    HistoryKind.VERSION: VersionNote,
}
KIND_OF = {carried: kind for kind, carried in CARRIED.items()}


@dataclass(frozen=True, slots=True)
class HistoryBounds:
    """What the history may take in Redis; past either bound the oldest entries go."""

    max_entries: int
    max_bytes: int


def history_bounds(section: ConsoleSection) -> HistoryBounds | None:
    """The bounds that the configuration gives; ``None`` when no history is kept."""
    if not section.history:
        return None
    return HistoryBounds(section.history_max_entries, section.history_max_mb * 1_000_000)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One entry. ``message`` is ``None`` when it cannot be read (``problem`` says why): newer, or damaged."""

    entry_id: str
    kind: str
    turn_id: str
    tenant: str
    message: Told | None
    record: TurnRecord | None = None
    problem: str = ""
    data: bytes = b""
    """``message`` as `codec.encode_payload` wrote it."""
    record_data: bytes = b""
    """``record`` in the same way; empty without."""

    @property
    def time_ms(self) -> int:
        """Redis time at which it was written, milliseconds."""
        return int(self.entry_id.partition("-")[0])


@dataclass(frozen=True, slots=True)
class HistoryState:
    """How much history Redis holds: entries, bytes of payload, and the id of the newest entry ever written."""

    length: int
    held_bytes: int
    newest_id: str


def turn_of(note: Note) -> str:
    """The turn that a note is of; empty for those of a whole step."""
    return note.turn_id if isinstance(note, Trained) else ""


def split_notes(notes: Sequence[Note], size: int) -> list[Sequence[Note]]:
    """Notes in portions of ``size``, in order: a script must not hold Redis for long."""
    return [notes[start : start + size] for start in range(0, len(notes), size)]
