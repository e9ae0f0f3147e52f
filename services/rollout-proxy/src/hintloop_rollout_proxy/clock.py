"""Redis time without asking Redis each time: an offset measured now and then, the monotonic clock in between."""

from __future__ import annotations

import asyncio
import math
import time

import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.errors import DependencyError

#: Seconds between measurements of the offset.
MEASURE_INTERVAL_S = 5.0
#: A measurement is good that can be wrong by no more than this, milliseconds; so often, and for so many seconds, it is
#: tried to get one.
GOOD_MS = 2.0
MOST_TRIES = 10
TRY_FOR_S = 1.0
#: By how much two clocks part in a second, milliseconds: ten times what a bad quartz does.
DRIFT_MS_PER_S = 1.0

log = structlog.get_logger()


class RedisClock:
    """Milliseconds of Redis time, never less than before. Until Redis answered, the machine's own clock stands in.

    What replicas captured is put in order by it, so it must not be wrong by as much as an agent takes from an answer to
    its next request. The offset lies somewhere within the round trip in which it was measured, which may be long on a
    busy machine. So the best of several is taken, and a worse one only in place of one that is too old or refuted.
    """

    def __init__(self, broker: Broker) -> None:
        """Measure against ``broker``."""
        self._broker = broker
        self._offset_ms = time.time() * 1000 - time.monotonic() * 1000
        self._error_ms = math.inf
        self._measured_at = time.monotonic()
        self._latest_ms = 0

    def now_ms(self) -> int:
        """Redis time now, milliseconds."""
        # Corrected backwards, an answer would seem to end before it began.
        self._latest_ms = max(self._latest_ms, int(time.monotonic() * 1000 + self._offset_ms))
        return self._latest_ms

    async def measure(self) -> None:
        """Take the offset, as well as it can be known."""
        began = time.monotonic()
        for _ in range(MOST_TRIES):
            before = time.monotonic()
            redis_ms = await self._broker.time_ms()
            after = time.monotonic()
            error_ms = (after - before) / 2 * 1000
            self._consider(redis_ms - (before + after) / 2 * 1000, error_ms, after)
            if error_ms <= GOOD_MS or after - began >= TRY_FOR_S:
                return

    def _consider(self, offset_ms: float, error_ms: float, now: float) -> None:
        """Take a measurement when it is better than what is known, or shows that this is wrong."""
        known_ms = self._error_ms + (now - self._measured_at) * DRIFT_MS_PER_S
        # Redis cuts its time to whole milliseconds.
        refuted = abs(offset_ms - self._offset_ms) > error_ms + known_ms + 1
        if error_ms <= known_ms or refuted:
            self._offset_ms, self._error_ms, self._measured_at = offset_ms, error_ms, now

    async def run(self) -> None:
        """Measure for ever."""
        while True:
            try:
                await self.measure()
            except DependencyError as error:
                log.debug("clock not measured", error=str(error))
            await asyncio.sleep(MEASURE_INTERVAL_S)
