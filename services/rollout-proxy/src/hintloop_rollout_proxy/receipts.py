"""Lets the end of an answer wait until its capture is stored: what an agent saw end, a crash does not lose.

Owns who waits and for how long, and whether waiting is of use: while captures take longer than that, for whatever
reason, no agent is held up by it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

Receipt = asyncio.Future[bool]
"""False when it was not waited for any longer."""

#: Seconds that the end of an answer waits at most.
WAIT_S = 1.0


class Receipts:
    """A receipt a capture, given by whoever stored it, or knows that it cannot be."""

    def __init__(self) -> None:
        """Nothing is on its way."""
        self.prompt = True
        """Whether waiting is of use: the last captures were stored within ``WAIT_S`` of having been put, and nothing
        happened since that says otherwise."""
        self._put_at: dict[str, float] = {}
        self._waiting: dict[str, list[Receipt]] = {}

    def __len__(self) -> int:
        """Receipts that are waited for."""
        return sum(map(len, self._waiting.values()))

    def put(self, turn_id: str) -> None:
        """A capture is on its way from now on."""
        self._put_at.setdefault(turn_id, time.monotonic())

    def expect(self, turn_id: str) -> Receipt:
        """What is done once the capture is stored or known to be lost. To be discarded by whoever asked for it."""
        receipt: Receipt = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(turn_id, []).append(receipt)
        return receipt

    def discard(self, turn_id: str, receipt: Receipt) -> None:
        """Nobody waits for this one any more."""
        waiting = self._waiting.get(turn_id)
        if waiting is not None and receipt in waiting:
            waiting.remove(receipt)
            if not waiting:
                del self._waiting[turn_id]

    def give(self, turn_ids: Iterable[str]) -> None:
        """These captures are stored, or lost for a reason that was told; whoever waits for them goes on."""
        now, oldest = time.monotonic(), None
        for turn_id in turn_ids:
            put_at = self._put_at.pop(turn_id, now)
            oldest = put_at if oldest is None else min(oldest, put_at)
            for receipt in self._waiting.pop(turn_id, ()):
                if not receipt.done():
                    receipt.set_result(True)
        if oldest is not None:
            self.prompt = now - oldest < WAIT_S
