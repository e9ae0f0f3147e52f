"""What one clause of a user's message can be, in any language."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hintloop_judge.clauses import Clause


class Kind(StrEnum):
    """Kinds of clauses."""

    COMPLAINT = "complaint"  # the answer displeased
    CORRECTION = "correction"  # it displeased, and here is what was wanted
    APPROVAL = "approval"  # it pleased
    DIRECTION = "direction"  # how answers should be
    FRAGMENT = "fragment"  # names a form; what for depends on the clauses around
    QUESTION = "question"  # asks for something new
    TASK = "task"  # orders something new
    PLEASANTRY = "pleasantry"
    OTHER = "other"


@dataclass(slots=True)
class Reading:
    """A clause and what it is. ``carries``: it belongs in a hint. ``affirms``, ``contrasts``: how it opens."""

    clause: Clause
    kind: Kind
    carries: bool = False
    affirms: bool = False
    contrasts: bool = False

    @property
    def continues(self) -> bool:
        """It may continue the hint begun before it in its sentence."""
        return self.kind in (Kind.OTHER, Kind.FRAGMENT, Kind.DIRECTION)

    def next_to(self, other: Reading) -> bool:
        """``other`` is the following clause of the same sentence."""
        return self.clause.sentence == other.clause.sentence
