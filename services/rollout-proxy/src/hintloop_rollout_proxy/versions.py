"""Which weights may have made an answer: a cached view of the released version, refreshed often.

Version 0 stands for the base weights, before anything was published. The interval is conservative: the start
takes the oldest value that may still have been in force, the end the newest that may already have been.
"""

from __future__ import annotations

import asyncio

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

    @property
    def oldest(self) -> int:
        """Lower bound for a request that starts now; 0 while Redis never answered."""
        return self._state.current or 0

    async def read(self) -> WeightsState:
        """Read the state now, and remember it."""
        self._state = await self._broker.weights()
        return self._state

    async def run(self) -> None:
        """Refresh for ever."""
        while True:
            try:
                await self.read()
                await asyncio.sleep(REFRESH_INTERVAL_S)
            except DependencyError as error:
                log.debug("version not refreshed", error=str(error))
                await asyncio.sleep(RETRY_INTERVAL_S)
