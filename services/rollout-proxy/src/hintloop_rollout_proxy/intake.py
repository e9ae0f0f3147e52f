"""Takes finished captures from the handlers on their way to the writer, and remembers which answer is which turn.

Scrubbing, where it is on, happens here: what lies behind, Redis and disk, never sees the text as it was.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from hintloop_rollout_proxy import receipts
from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.parcels import Parcel
from hintloop_rollout_proxy.receipts import Receipt, Receipts

#: Answers whose turn is remembered, so that feedback can be told what it was attached to.
REMEMBERED = 10_000


class Sink(Protocol):
    """Where parcels go next."""

    async def put(self, parcel: Parcel) -> None:
        """Take one parcel; may wait."""
        ...

    @property
    def full(self) -> bool:
        """Whether :meth:`put` would have to wait."""
        ...


class Intake:
    """The one way in for captures."""

    def __init__(self, sink: Sink, given: Receipts, metrics: ProxyMetrics) -> None:
        """Hand parcels on to ``sink``; whatever lies behind it gives receipts by ``given``."""
        self._sink = sink
        self.receipts = given
        self._metrics = metrics
        self._turns: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def put(self, parcel: Parcel) -> None:
        """Take one finished exchange."""
        capture = parcel.capture
        if capture.response_id is not None and capture.choice == 0:
            self._turns[capture.tenant, capture.response_id] = capture.turn_id
            if len(self._turns) > REMEMBERED:
                self._turns.popitem(last=False)
        self.receipts.put(capture.turn_id)
        await self._sink.put(parcel)

    async def store(self, parcels: list[Parcel]) -> None:
        """Take what belongs to one answer out of ``parcels`` and wait until it is stored: for ``WAIT_S`` in all, and
        not at all where that is of no use. What there is no room for is left in ``parcels``."""
        if not self.prompt:
            self._metrics.early_ends.inc()
            return
        expected: list[tuple[str, Receipt]] = []
        timer = asyncio.get_running_loop().call_later(receipts.WAIT_S, give_up, expected)
        in_time = True
        try:
            while parcels and not self._sink.full:
                turn_id = parcels[0].capture.turn_id
                expected.append((turn_id, self.receipts.expect(turn_id)))
                await self.put(parcels[0])
                del parcels[0]
            for _, receipt in expected:
                in_time = await receipt and in_time
        finally:
            timer.cancel()
            for turn_id, receipt in expected:
                self.receipts.discard(turn_id, receipt)
        if not in_time:
            self.receipts.prompt = False
        if parcels or not in_time:
            self._metrics.early_ends.inc()

    @property
    def prompt(self) -> bool:
        """Whether waiting is of use: what is put now is likely to be stored at once."""
        return self.receipts.prompt and not self._sink.full

    def turn_of(self, tenant: str, response_id: str) -> str | None:
        """The turn of an answer that this process gave lately to ``tenant``."""
        return self._turns.get((tenant, response_id))


def give_up(expected: Sequence[tuple[str, Receipt]]) -> None:
    """Whoever waits for these goes on, though they are not stored."""
    for _, receipt in expected:
        if not receipt.done():
            receipt.set_result(False)
