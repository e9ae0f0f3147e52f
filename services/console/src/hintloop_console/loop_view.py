"""The loop as it is now: funnel, streams with who holds what, weights, services' own words, rates, alarms.

Asks Redis every second while pages listen, else every few; everyone is shown the same look.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.diagnosis.alarms import Alarm, AlarmState
from hintloop_contract.diagnosis.causes import EXPLANATIONS, Cause
from hintloop_contract.errors import DependencyError
from hintloop_contract.streams import FUNNEL, STREAMS

WATCHED_S, UNWATCHED_S = 1.0, 5.0
#: Rates are over this long, or over as long as is known.
RATE_MS = 60_000

Row = dict[str, Any]


@dataclass(slots=True)
class Look:
    """One look. ``loop`` is ``None`` until Redis has answered once; ``away`` says why it does not answer now."""

    loop: Row | None = None
    alarms: AlarmState = field(default_factory=AlarmState)
    current: int | None = None
    away: str | None = None

    def shown(self) -> Row:
        """The look as pages are told it."""
        return {**(self.loop or {}), "away": self.away}


class LoopView:
    """Looks again and again."""

    def __init__(self, broker: Broker) -> None:
        """Look at the deployment of ``broker``."""
        self._broker = broker
        self._counted: deque[tuple[int, dict[str, int]]] = deque()
        self._watched = asyncio.Event()
        self.watchers = 0
        """Pages that listen."""
        self.look = Look(away="not looked yet")

    async def run(self, stop: asyncio.Event) -> None:
        """Look until ``stop``."""
        while not stop.is_set():
            await self.take()
            ends = asyncio.create_task(stop.wait())
            wakes = asyncio.create_task(self._watched.wait())
            pause_s = WATCHED_S if self.watchers else UNWATCHED_S
            self._watched.clear()
            await asyncio.wait({ends, wakes}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            for task in (ends, wakes):
                task.cancel()

    @contextlib.contextmanager
    def watching(self) -> Any:
        """A page listens for as long as this is open."""
        self.watchers += 1
        self._watched.set()
        try:
            yield
        finally:
            self.watchers -= 1

    async def take(self) -> Look:
        """Look now."""
        try:
            loop = await self._loop()
            alarms = await self._broker.alarms()
        except DependencyError as error:
            if self.look.away is None:
                structlog.get_logger().warning("looking waits", detail=error.detail)
            self.look = Look(self.look.loop, self.look.alarms, self.look.current, error.detail)
        else:
            self.look = Look(loop, alarms, loop["weights"]["current"])
        return self.look

    async def _loop(self) -> Row:
        broker = self._broker
        now_ms = await broker.time_ms()
        counted, weights, paused = await broker.funnel(), await broker.weights(), await broker.paused()
        steps = {step: counted.steps.get(step, 0) for step in FUNNEL}
        drops = {f"{stage}:{reason}": number for (stage, reason), number in sorted(counted.drops.items()) if number}
        return {
            "time_ms": now_ms,
            "funnel": steps,
            "dropped": drops,
            "streams": {stream.name: await self._stream(stream) for stream in STREAMS},
            "weights": {"current": weights.current, "updating": weights.updating},
            "trainer": await broker.get_status("trainer"),
            "engines": await broker.get_status("engines"),
            "linker": await broker.get_status("linker"),
            "paused": None if paused is None else {"reason": paused.reason, "since_ms": paused.since_ms},
            "rates_per_minute": self._rates(now_ms, {**steps, "dropped": sum(drops.values())}),
        }

    async def _stream(self, stream: Any) -> Row:
        counts = await self._broker.counts(stream)
        holders = {} if stream.group is None else await self._broker.holders(stream)
        listed = [{"name": name, "pending": found.pending, "idle_ms": found.idle_ms} for name, found in holders.items()]
        return {"length": counts.length, "pending": counts.pending, "holders": listed}

    def _rates(self, now_ms: int, counts: dict[str, int]) -> dict[str, float]:
        self._counted.append((now_ms, counts))
        while len(self._counted) > 2 and self._counted[1][0] <= now_ms - RATE_MS:
            self._counted.popleft()
        then_ms, before = self._counted[0]
        if now_ms <= then_ms or any(counts[name] < before[name] for name in counts):
            # Redis began anew, or this is the first look.
            self._counted = deque([(now_ms, counts)])
            return dict.fromkeys(counts, 0.0)
        minutes = (now_ms - then_ms) / 60_000
        return {name: round((counts[name] - before[name]) / minutes, 2) for name in counts}


def alarm_row(alarm: Alarm) -> Row:
    """An alarm with its explanation; ``until_ms`` is null while it stands."""
    known = EXPLANATIONS.get(Cause(alarm.cause)) if alarm.cause in set(Cause) else None
    explanation = None if known is None else {"cause": known.cause, "fix": known.fix}
    return {
        "cause": alarm.cause,
        "since_ms": alarm.since_ms,
        "until_ms": alarm.until_ms,
        "seen": alarm.seen,
        "grave": alarm.grave,
        "evidence": dict(alarm.evidence),
        "explanation": explanation,
    }
