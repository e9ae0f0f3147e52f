"""Alarms: causes that stand for a while. Owns their wire types and the hysteresis that keeps them from flapping. Pure.

A cause becomes an alarm when :data:`RAISE_AFTER` looks in a row recognise it, and ends when :data:`CLEAR_AFTER` looks
in a row do not: a figure on the edge changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.diagnosis.figures import Recognised

RAISE_AFTER, CLEAR_AFTER = 2, 6
#: Ended alarms that are remembered.
MOST_PAST = 200


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that stands, or stood. ``until_ms`` is ``None`` while it does.

    Example: ``Alarm(cause="no_hints", since_ms=1764450000000, seen="40 of 52 turns …", evidence={"dropped": 40})``.
    """

    cause: str
    since_ms: int
    seen: str
    evidence: dict[str, float | str] = msgspec.field(default_factory=dict)
    grave: bool = False
    until_ms: int | None = None


class AlarmState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of alarms. ``looked_ms``: when somebody looked last; ``None``: nobody looks, so nothing is known.

    Example: ``AlarmState(looked_ms=1764450000000, active=(), past=())``.
    """

    looked_ms: int | None = None
    active: tuple[Alarm, ...] = ()
    past: tuple[Alarm, ...] = ()
    """Newest first."""


@dataclass(slots=True)
class _Standing:
    recognised: Recognised
    since_ms: int
    present: int = 0
    absent: int = 0
    raised: bool = False


@dataclass(slots=True)
class Hysteresis:
    """Turns looks into alarms."""

    raise_after: int = RAISE_AFTER
    clear_after: int = CLEAR_AFTER
    _standing: dict[str, _Standing] = field(default_factory=dict)

    def restore(self, active: Sequence[Alarm]) -> None:
        """Take over what another raised before."""
        known = set(Cause)
        for alarm in active:
            if alarm.cause in known:
                found = Recognised(Cause(alarm.cause), alarm.seen, dict(alarm.evidence), alarm.grave)
                self._standing[alarm.cause] = _Standing(found, alarm.since_ms, self.raise_after, raised=True)

    def look(self, recognised: Sequence[Recognised], now_ms: int) -> tuple[list[Alarm], list[Alarm]]:
        """Take one look's causes: the alarms that stand, in the looks' order, and those that ended with this look."""
        for found in recognised:
            standing = self._standing.setdefault(found.cause, _Standing(found, now_ms))
            standing.recognised, standing.absent = found, 0
            standing.present += 1
            standing.raised = standing.raised or standing.present >= self.raise_after
        here = {found.cause for found in recognised}
        ended = []
        for cause, standing in list(self._standing.items()):
            if cause in here:
                continue
            standing.present = 0
            standing.absent += 1
            if not standing.raised or standing.absent >= self.clear_after:
                del self._standing[cause]
                if standing.raised:
                    ended.append(_alarm(standing, now_ms))
        return [_alarm(standing) for standing in self._standing.values() if standing.raised], ended


def _alarm(standing: _Standing, until_ms: int | None = None) -> Alarm:
    found = standing.recognised
    return Alarm(
        cause=str(found.cause),
        since_ms=standing.since_ms,
        seen=found.seen,
        evidence=dict(found.evidence),
        grave=found.grave,
        until_ms=until_ms,
    )
