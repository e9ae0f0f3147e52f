"""The trainer's side of the `samples` stream: reads ahead, renews what it holds, drops, acknowledges.

Runs in the background thread; the training thread calls it through :class:`background.Background`.
Everything read stays pending in the stream until :meth:`SampleSource.finish`: after a crash it comes again.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from hintloop_contract.broker import Broker, Entry
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Drop, DropReason, Message, Sample, Stage
from hintloop_contract.streams import SAMPLES

from hintloop_trainer.admission import Admission
from hintloop_trainer.batch import read_example
from hintloop_trainer.errors import SampleError
from hintloop_trainer.lineage import Lineage

READ_BLOCK_MS = 500
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Held:
    """A sample and the stream entry that stands for it."""

    sample: Sample
    entry: Entry[Message]


class SampleSource:
    """Samples of one policy, held by one trainer."""

    def __init__(
        self, broker: Broker, consumer: str, admission: Admission, *, vocab_size: int, claim_idle_ms: int, capacity: int
    ) -> None:
        """Hold up to ``capacity`` samples that wait to be trained."""
        self._broker = broker
        self._consumer = consumer
        self._admission = admission
        self._vocab_size = vocab_size
        self._claim_idle_ms = claim_idle_ms
        self._capacity = capacity
        self._waiting: list[Held] = []
        self._held: dict[str, str] = {}
        """Entry id by turn id, of everything unacknowledged."""
        self._already_trained: set[str] = set()
        self._arrived = asyncio.Condition()
        self._log = structlog.get_logger()

    def skip(self, turn_ids: Sequence[str]) -> None:
        """These turns are in a durable checkpoint: acknowledge them when they come."""
        self._already_trained.update(turn_ids)

    async def serve(self, stop: asyncio.Event) -> None:
        """Read, claim and renew until ``stop``; waits out an absent broker."""
        renewed = 0.0
        period_s = self._claim_idle_ms / 3000
        while not stop.is_set():
            try:
                if time.monotonic() - renewed >= period_s:
                    await self._renew_and_claim()
                    renewed = time.monotonic()
                await self._read()
            except DependencyError as error:
                self._log.warning("broker away", detail=str(error))
                await asyncio.sleep(RETRY_S)

    async def _renew_and_claim(self) -> None:
        if self._held:
            await self._broker.renew(SAMPLES, self._consumer, list(self._held.values()))
        free = self._capacity - len(self._waiting)
        if free > 0:
            await self._take(await self._broker.claim(SAMPLES, self._consumer, free, self._claim_idle_ms))

    async def _read(self) -> None:
        free = self._capacity - len(self._waiting)
        if free <= 0:
            await asyncio.sleep(READ_BLOCK_MS / 1000)
            return
        await self._take(await self._broker.read(SAMPLES, self._consumer, free, READ_BLOCK_MS))

    async def _take(self, entries: Sequence[Entry[Message]]) -> None:
        known = [entry for entry in entries if entry.turn_id in self._already_trained]
        if known:
            await self._broker.finish(known)
            self._log.info("acknowledged turns that the checkpoint holds", count=len(known))
        for entry in entries:
            if entry.turn_id in self._already_trained or entry.turn_id in self._held:
                continue
            await self._check(entry)
        async with self._arrived:
            self._arrived.notify_all()

    async def _check(self, entry: Entry[Message]) -> None:
        try:
            if not isinstance(entry.message, Sample):
                raise SampleError(f"the stream holds a {type(entry.message).__name__}, expected a Sample")
            read_example(entry.message, self._vocab_size)
        except SampleError as error:
            # The same bytes fail every time: no second attempt.
            await self._broker.fail(
                entry, stage=Stage.TRAIN, error=str(error), traceback=traceback.format_exc(), max_attempts=1
            )
            return
        self._waiting.append(Held(entry.message, entry))
        self._held[entry.turn_id] = entry.entry_id

    async def collect(self, count: int, lineage: Lineage, timeout_s: float) -> list[Held] | None:
        """``count`` samples that may be trained now, oldest first; ``None`` when there are not enough in time.

        Those that may not are dropped, with their reason.
        """
        try:
            async with asyncio.timeout(timeout_s), self._arrived:
                await self._arrived.wait_for(lambda: len(self._waiting) >= count)
        except TimeoutError:
            return None
        await self._sift(lineage)
        if len(self._waiting) < count:
            return None
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    async def _sift(self, lineage: Lineage) -> None:
        for held in list(self._waiting):
            refusal = self._admission.refusal(held.sample, lineage)
            if refusal is not None:
                await self._drop(held, refusal.reason, refusal.detail)

    async def _drop(self, held: Held, reason: DropReason, detail: str) -> None:
        drop = Drop(
            turn_id=held.sample.turn_id,
            stage=Stage.TRAIN,
            reason=reason,
            detail=detail,
            tenant=held.sample.tenant,
        )
        await self._broker.drop(held.entry, drop)
        self._waiting.remove(held)
        self._held.pop(held.sample.turn_id, None)

    @property
    def num_waiting(self) -> int:
        """Samples read and not yet in a collection."""
        return len(self._waiting)

    async def finish(self, trained: Sequence[Held]) -> None:
        """Acknowledge samples that a durable checkpoint holds."""
        await self._broker.finish([held.entry for held in trained])
        await self._broker.set_trained_pending(0)
        for held in trained:
            self._held.pop(held.sample.turn_id, None)

    def forget(self, trained: Sequence[Held]) -> None:
        """Stop renewing samples whose acknowledgement failed: they are claimed again, and acknowledged then."""
        for held in trained:
            self._held.pop(held.sample.turn_id, None)

    async def release(self, untrained: Sequence[Held]) -> None:
        """Give back what waits, and ``untrained``, for any trainer to claim at once."""
        for held in [*untrained, *self._waiting]:
            await self._broker.release(held.entry)
            self._held.pop(held.sample.turn_id, None)
        self._waiting.clear()
