"""Lets the end of an answer wait until its capture is stored: what an agent saw end, a crash does not lose.

Owns who waits and for how long. Whether waiting is of use is told by who stores: while Redis or the disk takes its
time, no agent is held up by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

#: Seconds that the end of an answer waits at most.
WAIT_S = 1.0


class Receipts:
    """One receipt a capture, given by whoever stored it, or knows that it cannot be."""

    def __init__(self) -> None:
        """Expect none yet."""
        self.prompt = True
        """Whether captures are stored within ``WAIT_S``, as far as is known."""
        self._open: dict[str, asyncio.Future[None]] = {}

    def __len__(self) -> int:
        """Receipts that are waited for."""
        return len(self._open)

    def expect(self, turn_id: str) -> None:
        """A capture is about to be handed over, and :meth:`wait` follows."""
        self._open[turn_id] = asyncio.get_running_loop().create_future()

    def give(self, turn_id: str) -> None:
        """A capture is stored, or lost for a reason that was told; whoever waits for it goes on."""
        receipt = self._open.pop(turn_id, None)
        if receipt is not None and not receipt.done():
            receipt.set_result(None)

    async def wait(self, turn_ids: Collection[str]) -> bool:
        """Wait for the receipts of expected captures; false when they did not all come within ``WAIT_S``: then none
        is worth waiting for until ``prompt`` is set again."""
        late: list[str] = []
        timer = asyncio.get_running_loop().call_later(WAIT_S, self._give_up, turn_ids, late)
        try:
            for turn_id in turn_ids:
                receipt = self._open.get(turn_id)
                if receipt is not None:
                    await receipt
        finally:
            timer.cancel()
            for turn_id in turn_ids:
                self._open.pop(turn_id, None)
        return not late

    def _give_up(self, turn_ids: Collection[str], late: list[str]) -> None:
        self.prompt = False
        late.extend(turn_ids)
        for turn_id in turn_ids:
            self.give(turn_id)
