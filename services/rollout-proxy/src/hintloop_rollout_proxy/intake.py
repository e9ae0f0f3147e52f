"""Takes finished captures from the handlers on their way to the writer, and remembers which answer is which turn.

Scrubbing, where it is on, happens here: what lies behind, Redis and disk, never sees the text as it was.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from hintloop_rollout_proxy.parcels import Parcel

#: Answers whose turn is remembered, so that feedback can be told what it was attached to.
REMEMBERED = 10_000


class Sink(Protocol):
    """Where parcels go next."""

    async def put(self, parcel: Parcel) -> None:
        """Take one parcel; may wait."""
        ...


class Intake:
    """The one way in for captures."""

    def __init__(self, sink: Sink) -> None:
        """Hand parcels on to ``sink``."""
        self._sink = sink
        self._turns: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def put(self, parcel: Parcel) -> None:
        """Take one finished exchange; the client has its answer by then."""
        capture = parcel.capture
        if capture.response_id is not None and capture.choice == 0:
            self._turns[capture.tenant, capture.response_id] = capture.turn_id
            if len(self._turns) > REMEMBERED:
                self._turns.popitem(last=False)
        await self._sink.put(parcel)

    def turn_of(self, tenant: str, response_id: str) -> str | None:
        """The turn of an answer that this process gave lately to ``tenant``."""
        return self._turns.get((tenant, response_id))
