"""Tells the linker which requests are still being answered, so that no deadline passes over one of them.

Most requests end before they would be registered; only those that last are worth a round trip to Redis. The
linker waits ``REGISTER_WITHIN_MS`` past a deadline for that reason.
"""

from __future__ import annotations

import asyncio

import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.errors import DependencyError

INTERVAL_S = 0.25
#: A request that lasts is registered within this time, milliseconds.
REGISTER_WITHIN_MS = 1000

log = structlog.get_logger()


class InFlight:
    """Requests from their arrival until their capture is written."""

    def __init__(self, broker: Broker) -> None:
        """Register with ``broker``."""
        self._broker = broker
        self._open: dict[str, int] = {}
        self._registered: set[str] = set()

    def begin(self, turn_id: str, start_ms: int) -> None:
        """A request arrived."""
        self._open[turn_id] = start_ms

    def end(self, turn_id: str) -> None:
        """Its capture is written, or it will have none."""
        self._open.pop(turn_id, None)

    def __len__(self) -> int:
        """Requests not yet captured."""
        return len(self._open)

    async def register(self) -> None:
        """Bring the broker's set up to date."""
        for turn_id, start_ms in list(self._open.items()):
            if turn_id not in self._registered:
                await self._broker.inflight_add(turn_id, start_ms)
                self._registered.add(turn_id)
        for turn_id in [turn_id for turn_id in self._registered if turn_id not in self._open]:
            await self._broker.inflight_remove(turn_id)
            self._registered.discard(turn_id)

    async def run(self) -> None:
        """Register for ever."""
        while True:
            try:
                await self.register()
            except DependencyError as error:
                log.debug("requests in flight not registered", error=str(error))
            await asyncio.sleep(INTERVAL_S)
