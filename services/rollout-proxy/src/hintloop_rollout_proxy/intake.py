"""Takes finished captures from the handlers on their way to the writer, and remembers which answer is which turn.

Scrubbing, where it is on, happens here: what lies behind, Redis and disk, never sees the text as it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.parcels import Parcel
from hintloop_rollout_proxy.receipts import Receipts

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

    def __init__(self, sink: Sink, receipts: Receipts, metrics: ProxyMetrics) -> None:
        """Hand parcels on to ``sink``, which gives ``receipts``."""
        self._sink = sink
        self._receipts = receipts
        self._metrics = metrics
        self._turns: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def put(self, parcel: Parcel) -> None:
        """Take one finished exchange."""
        capture = parcel.capture
        if capture.response_id is not None and capture.choice == 0:
            self._turns[capture.tenant, capture.response_id] = capture.turn_id
            if len(self._turns) > REMEMBERED:
                self._turns.popitem(last=False)
        await self._sink.put(parcel)

    async def store(self, parcels: Sequence[Parcel]) -> None:
        """Take what belongs to one answer and wait until it is stored, for a moment."""
        turn_ids = [parcel.capture.turn_id for parcel in parcels]
        for turn_id in turn_ids:
            self._receipts.expect(turn_id)
        for parcel in parcels:
            await self.put(parcel)
        if not await self._receipts.wait(turn_ids):
            self._metrics.early_ends.inc()

    @property
    def prompt(self) -> bool:
        """Whether :meth:`store` is worth its time: what is put now is likely to be stored at once."""
        return self._receipts.prompt and not self._sink.full

    def turn_of(self, tenant: str, response_id: str) -> str | None:
        """The turn of an answer that this process gave lately to ``tenant``."""
        return self._turns.get((tenant, response_id))
