"""Which weights may have made an answer: a cached view of the released version, refreshed often.

Version 0 stands for the base weights, before anything was published. The interval is conservative: the start
takes the oldest value that may still have been in force, the end the newest that may already have been.
"""

from __future__ import annotations

import asyncio
import math
from time import perf_counter

import structlog
from hintloop_contract.broker import Broker, WeightsState
from hintloop_contract.errors import DependencyError

#: Seconds between refreshes.
REFRESH_INTERVAL_S = 0.05
RETRY_INTERVAL_S = 0.5

log = structlog.get_logger()


def newest_of(state: WeightsState) -> int:
    """The newest version that may be in force: one being published counts already."""
    return max(state.current or 0, state.updating or 0)


class VersionView:
    """The version in force at the start of requests."""

    def __init__(self, broker: Broker) -> None:
        """Read from ``broker``."""
        self._broker = broker
        self._state = WeightsState()
        # When the last publishing began and ended; an end that is to come is infinite.
        self._publishing = (math.inf, -math.inf)

    @property
    def state(self) -> WeightsState:
        """What was read last."""
        return self._state

    @property
    def oldest(self) -> int:
        """Lower bound for a request that starts now; 0 while Redis never answered."""
        return self._state.current or 0

    async def read(self) -> WeightsState:
        """Read the state now, and remember it."""
        state = await self._broker.weights()
        if state.updating is not None and self._state.updating is None:
            self._publishing = (perf_counter(), math.inf)
        elif state.updating is None and self._state.updating is not None:
            self._publishing = (self._publishing[0], perf_counter())
        self._state = state
        return self._state

    def published_within(self, start_s: float, end_s: float) -> float:
        """Seconds of that time (of ``perf_counter``) in which the last publishing was under way, to some
        hundredths."""
        began_s, ended_s = self._publishing
        return max(0.0, min(end_s, ended_s) - max(start_s, began_s))

    async def run(self) -> None:
        """Refresh for ever."""
        while True:
            try:
                await self.read()
                await asyncio.sleep(REFRESH_INTERVAL_S)
            except DependencyError as error:
                log.debug("version not refreshed", error=str(error))
                await asyncio.sleep(RETRY_INTERVAL_S)
