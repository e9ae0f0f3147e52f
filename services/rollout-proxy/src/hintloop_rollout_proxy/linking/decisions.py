"""What the linker says. ``Placed`` tells where a request stands; ``Link`` and ``Drop`` settle a turn, each once."""

from __future__ import annotations

from dataclasses import dataclass, field

from hintloop_contract.messages import TurnNote


@dataclass(frozen=True, slots=True)
class Placed:
    """A request took its place; said again when hindsight gives it another, and then the last one holds.

    ``continues`` is the turn whose next state it carries (also of a fork, which is never a second sample);
    ``retry_of`` an earlier attempt of the same request; a ``side`` call stands in no session, and its
    ``session_id`` is empty. ``gap_ms``: from the end of the continued answer to this request's arrival.
    """

    turn_id: str
    session_id: str
    turn_index: int
    segment: int = 0
    continues: str | None = None
    retry_of: str | None = None
    forked: bool = False
    side: bool = False
    gap_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """The turn's next state is settled: ``next_state`` is a JSON array of chat messages, those after the answer.

    ``score`` is that of explicit feedback: +1, 0, -1, or ``None`` when there was none.
    """

    turn_id: str
    session_id: str
    turn_index: int
    next_state: bytes
    next_turn_id: str
    segment: int = 0
    score: int | None = None
    note: TurnNote | None = field(default=None, compare=False, repr=False)
    """What the next linker has to know of the turn."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The turn will not be trained; ``reason`` is a ``DropReason``. With a ``note``, requests may go on from it."""

    turn_id: str
    reason: str
    detail: str = ""
    note: TurnNote | None = field(default=None, compare=False, repr=False)


Decision = Placed | Link | Drop
