"""What a check found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hintloop_contract.diagnosis.causes import EXPLANATIONS, Cause
from hintloop_contract.diagnosis.figures import Recognised


class Outcome(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"
    NOT_YET = "not yet"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. ``seen`` is evidence: what was measured or answered, never a guess."""

    check: str
    outcome: Outcome
    seen: str
    cause: Cause | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    """A small table that goes with it."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON; ``cause`` and ``fix`` are null where nothing is wrong."""
        explained = None if self.cause is None else EXPLANATIONS[self.cause]
        return {
            "check": self.check,
            "outcome": str(self.outcome),
            "seen": self.seen,
            "cause": None if self.cause is None else str(self.cause),
            "explanation": None if explained is None else explained.cause,
            "fix": None if explained is None else explained.fix,
            **({"rows": self.rows} if self.rows else {}),
        }


def ok(check: str, seen: str, rows: list[dict[str, Any]] | None = None) -> Finding:
    """Nothing wrong."""
    return Finding(check, Outcome.OK, seen, rows=rows or [])


def warn(check: str, seen: str, cause: Cause, rows: list[dict[str, Any]] | None = None) -> Finding:
    """It works, and something will disappoint."""
    return Finding(check, Outcome.WARN, seen, cause, rows or [])


def fail(check: str, seen: str, cause: Cause, rows: list[dict[str, Any]] | None = None) -> Finding:
    """No turn can become a (right) gradient before this is mended."""
    return Finding(check, Outcome.FAIL, seen, cause, rows or [])


def skipped(check: str, seen: str) -> Finding:
    """Not looked at; ``seen`` says why."""
    return Finding(check, Outcome.SKIPPED, seen)


def not_yet(check: str, seen: str) -> Finding:
    """Too little has happened to tell."""
    return Finding(check, Outcome.NOT_YET, seen)


def of(check: str, recognised: Iterable[Recognised | None]) -> list[Finding]:
    """What the figures show, as findings; none where they show nothing."""
    return [
        Finding(check, Outcome.FAIL if found.grave else Outcome.WARN, found.seen, found.cause)
        for found in recognised
        if found is not None
    ]
