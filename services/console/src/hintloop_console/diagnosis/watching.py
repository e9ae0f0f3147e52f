"""Looks at one loop again and again and writes the alarms that stand. Owns windows and the lease; causes are
recognised by the contract's pure functions.

Counts are those of the last ten minutes, so that what was mended stops being an alarm.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.config import LoadedConfig
from hintloop_contract.diagnosis.alarms import Alarm, AlarmState, Hysteresis
from hintloop_contract.diagnosis.figures import Expected, Gaps, Recognised, Seen
from hintloop_contract.diagnosis.looking import PORTION, Recent, look, recent_of, since
from hintloop_contract.diagnosis.recognise import recognise
from hintloop_contract.errors import DependencyError
from hintloop_contract.ids import consumer_name

LOOK_S = 5.0
WINDOW_MS = 600_000
#: The lease outlives some looks, so that a slow one loses nothing.
LEASE_MS = int(LOOK_S * 4000)
#: Most entries of the history read at one look; the rest is read at the next.
MOST_ENTRIES = 1000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Counts:
    time_ms: int
    funnel: Mapping[str, int]
    drops: Mapping[str, int]
    gaps: Gaps | None


class LookFailures:
    """What raised while looking: counted each time, told the first time."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.counts: Counter[str] = Counter()

    def note(self, place: str, error: Exception) -> None:
        """``place``, a recogniser or the look itself, raised ``error``."""
        self.counts[place] += 1
        if self.counts[place] == 1:
            log.error("a look failed; its causes are not recognised", place=place, exc_info=error)


class AlarmWatch:
    """The alarms of one policy."""

    def __init__(
        self,
        broker: Broker,
        expected: Expected,
        hysteresis: Hysteresis | None = None,
        failures: LookFailures | None = None,
    ) -> None:
        """Know nothing yet. ``expected``: what the configuration says of a healthy run."""
        self.failures = failures or LookFailures()
        self._broker = broker
        self._expected = expected
        self._hysteresis = hysteresis or Hysteresis()
        self._owner = consumer_name("console")
        self._recent: Recent | None = None
        self._counts: deque[_Counts] = deque()
        self.state = AlarmState()
        """What stood at the last look."""

    async def look(self) -> AlarmState:
        """Look once, and write what stands unless another does.

        Raises:
            DependencyError: Redis is away.
        """
        now_ms = await self._broker.time_ms()
        recent = await self._read()
        seen = self._windowed(await look(self._broker, recent), now_ms)
        active, ended = self._hysteresis.look(self._recognised(seen), now_ms)
        _tell(self.state.active, active, ended)
        self.state = AlarmState(looked_ms=now_ms, active=tuple(active))
        mine = await self._broker.set_alarms(self._owner, now_ms, active, ended, lease_ms=LEASE_MS)
        if not mine:
            log.debug("another console raises alarms")
        return self.state

    def _recognised(self, seen: Seen) -> list[Recognised]:
        """What all recognisers say that can; one that cannot is one cause less, not the end of all."""
        return recognise(seen, self._expected, on_failure=self.failures.note)

    async def _read(self) -> Recent:
        """What the history says, read on from where the last look ended."""
        if self._recent is None:
            self._hysteresis.restore((await self._broker.alarms()).active)
            self._recent = await recent_of(self._broker)
            return self._recent
        count = 0
        while count < MOST_ENTRIES and (entries := await self._broker.history(self._recent.after, PORTION)):
            self._recent.add(entries)
            count += len(entries)
        return self._recent

    def _windowed(self, seen: Seen, now_ms: int) -> Seen:
        """``seen`` with the counts of the last :data:`WINDOW_MS`."""
        counts = _Counts(now_ms, seen.funnel, seen.drops, seen.gaps)
        self._counts.append(counts)
        while len(self._counts) > 1 and self._counts[1].time_ms <= now_ms - WINDOW_MS:
            self._counts.popleft()
        first = self._counts[0]
        return replace(
            seen,
            funnel=since(seen.funnel, first.funnel),
            drops=since(seen.drops, first.drops),
            gaps=gaps_since(seen.gaps, first.gaps),
        )


def gaps_since(now: Gaps | None, before: Gaps | None) -> Gaps | None:
    """Gaps counted after ``before``; all of ``now`` when the linker began anew meanwhile."""
    if now is None or before is None or now.num < before.num or now.num_late < before.num_late:
        return now
    return replace(
        now,
        num=now.num - before.num,
        num_near=now.num_near - before.num_near,
        num_late=now.num_late - before.num_late,
    )


def _tell(before: tuple[Alarm, ...], active: list[Alarm], ended: list[Alarm]) -> None:
    known = {alarm.cause for alarm in before}
    for alarm in active:
        if alarm.cause not in known:
            log.warning("alarm", cause=alarm.cause, seen=alarm.seen)
    for alarm in ended:
        log.info("alarm ended", cause=alarm.cause)


async def watch_alarms(
    broker: Broker,
    loaded: LoadedConfig,
    stop: asyncio.Event,
    failures: LookFailures | None = None,
    *,
    look_s: float = LOOK_S,
) -> None:
    """Look every ``look_s`` seconds until ``stop``; while Redis is away, nothing is known and nothing is raised.

    What else goes wrong is noted in ``failures``, and the next look goes on.

    Raises:
        ConfigError: the custom loss of the configuration is not found.
    """
    watch = AlarmWatch(broker, Expected.of(loaded.config, loaded.directory), failures=failures)
    while not stop.is_set():
        try:
            await watch.look()
        except DependencyError as error:
            log.warning("alarms wait", error=str(error))
        except Exception as error:  # noqa: BLE001 - noted, counted, and looked again
            watch.failures.note("look", error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), look_s)
