"""What the linker says. ``Placed`` tells where a request stands; ``Link`` and ``Drop`` settle a turn, each once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placed:
    """A request took its place. ``continues`` is the turn whose next state it carries (also of a fork, which is
    never a second sample); ``retry_of`` an earlier attempt of the same request."""

    turn_id: str
    session_id: str
    turn_index: int
    continues: str | None = None
    retry_of: str | None = None
    forked: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """The turn's next state is settled: ``next_state`` is a JSON array of the messages after the answer."""

    turn_id: str
    session_id: str
    turn_index: int
    next_state: bytes
    next_turn_id: str


@dataclass(frozen=True, slots=True)
class Drop:
    """The turn will not be trained; ``reason`` is a ``DropReason``."""

    turn_id: str
    reason: str
    detail: str = ""


Decision = Placed | Link | Drop
