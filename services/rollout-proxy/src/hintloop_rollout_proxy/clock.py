"""Redis time without asking Redis each time: an offset measured now and then, the monotonic clock in between."""

from __future__ import annotations

import asyncio
import time

import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.errors import DependencyError

#: Seconds between measurements of the offset.
MEASURE_INTERVAL_S = 5.0

log = structlog.get_logger()


class RedisClock:
    """Milliseconds of Redis time, never less than before. Until Redis answered, the machine's own clock stands in."""

    def __init__(self, broker: Broker) -> None:
        """Measure against ``broker``."""
        self._broker = broker
        self._offset_ms = time.time() * 1000 - time.monotonic() * 1000
        self._latest_ms = 0

    def now_ms(self) -> int:
        """Redis time now, milliseconds."""
        # On a busy machine a measurement is late by a second: an answer would seem to end before it began.
        self._latest_ms = max(self._latest_ms, int(time.monotonic() * 1000 + self._offset_ms))
        return self._latest_ms

    async def measure(self) -> None:
        """Take the offset; half the round trip is the answer's age."""
        before = time.monotonic()
        redis_ms = await self._broker.time_ms()
        after = time.monotonic()
        self._offset_ms = redis_ms - (before + after) / 2 * 1000

    async def run(self) -> None:
        """Measure for ever."""
        while True:
            try:
                await self.measure()
            except DependencyError as error:
                log.debug("clock not measured", error=str(error))
            await asyncio.sleep(MEASURE_INTERVAL_S)
