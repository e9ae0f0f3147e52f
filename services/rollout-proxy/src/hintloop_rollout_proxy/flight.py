"""Tells the linker which requests are still being answered, so that no deadline passes over one of them.

Most requests end before they would be registered; only those that last are worth a round trip to Redis. The
linker waits ``REGISTER_WITHIN_MS`` past a deadline for that reason.
"""

from __future__ import annotations

import asyncio
import time

import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.errors import DependencyError

INTERVAL_S = 0.25
#: A request that lasts is registered within this time, milliseconds.
REGISTER_WITHIN_MS = 1000
#: Younger requests are left out, seconds: at the next look most of them have ended.
YOUNG_S = 0.5

log = structlog.get_logger()


class InFlight:
    """Requests from their arrival until their capture is written."""

    def __init__(self, broker: Broker) -> None:
        """Register with ``broker``."""
        self._broker = broker
        self._open: dict[str, tuple[int, float]] = {}
        self._registered: set[str] = set()
        # Registered, or perhaps so: a call that failed may have had its effect.
        self._sent: set[str] = set()

    def begin(self, turn_id: str, start_ms: int) -> None:
        """A request arrived."""
        self._open[turn_id] = (start_ms, time.monotonic())

    def end(self, turn_id: str) -> None:
        """Its capture is written, or it will have none."""
        self._open.pop(turn_id, None)

    def __len__(self) -> int:
        """Requests not yet captured."""
        return len(self._open)

    async def register(self) -> None:
        """Bring the broker's set up to date."""
        born_before = time.monotonic() - YOUNG_S
        begun = {
            turn_id: start_ms
            for turn_id, (start_ms, born) in self._open.items()
            if born <= born_before and turn_id not in self._registered
        }
        ended = [turn_id for turn_id in self._sent if turn_id not in self._open]
        if begun or ended:
            self._sent.update(begun)
            await self._broker.inflight_update(begun, ended)
            self._registered.update(begun)
            self._registered.difference_update(ended)
            self._sent.difference_update(ended)

    async def run(self) -> None:
        """Register for ever."""
        while True:
            try:
                await self.register()
            except DependencyError as error:
                log.debug("requests in flight not registered", error=str(error))
            await asyncio.sleep(INTERVAL_S)
