"""The trainer's side of the `samples` stream: reads ahead, renews what it holds, drops, acknowledges.

Runs in the background thread; the training thread calls it through :class:`background.Background`.
Everything read stays pending in the stream until :meth:`SampleSource.finish`: after a crash it comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from hintloop_contract.broker import Broker, Entry
from hintloop_contract.errors import DependencyError, HintloopError
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
        self._saved: dict[str, float] = {}
        """Turns that a durable checkpoint holds and that may still be in the stream; when that was noted, seconds."""
        self._unsaved: dict[str, None] = {}
        """Turns trained since the last checkpoint, in order."""
        self._uncounted = 0
        self.dropped: Counter[str] = Counter()
        """Samples dropped by this source, by reason; to be read only."""
        self._arrived = asyncio.Condition()
        self._log = structlog.get_logger()

    def skip(self, turn_ids: Sequence[str]) -> None:
        """These turns are in a durable checkpoint: acknowledge them when they come."""
        now_s = time.monotonic()
        self._saved.update(dict.fromkeys(turn_ids, now_s))

    async def start(self) -> None:
        """Say that nothing is trained and unacknowledged: what an earlier run left is acknowledged as it comes."""
        await self._broker.ensure_groups()
        await self._broker.set_trained_pending(0)

    async def trained(self, held: Sequence[Held]) -> None:
        """Count samples that a step was made with; they stay pending until :meth:`finish`."""
        fresh = [item.sample.turn_id for item in held if item.sample.turn_id not in self._unsaved]
        # Noted first: the next checkpoint has to name them, whether or not Redis can be told now.
        self._unsaved.update(dict.fromkeys(fresh))
        self._uncounted += len(fresh)
        if self._uncounted:
            await self._broker.count("trained", self._uncounted)
            self._uncounted = 0
        await self._broker.set_trained_pending(len(self._unsaved))

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
        if free <= 0:
            return
        now_s = time.monotonic()
        claimed = await self._broker.claim(SAMPLES, self._consumer, free, self._claim_idle_ms)
        await self._take(claimed)
        if len(claimed) < free:
            # No entry is left that no one renews. What was trained long ago and did not come by now is gone.
            settled_s = now_s - 2 * self._claim_idle_ms / 1000
            self._saved = {turn_id: noted_s for turn_id, noted_s in self._saved.items() if noted_s > settled_s}

    async def _read(self) -> None:
        free = self._capacity - len(self._waiting)
        if free <= 0:
            await asyncio.sleep(READ_BLOCK_MS / 1000)
            return
        await self._take(await self._broker.read(SAMPLES, self._consumer, free, READ_BLOCK_MS))

    async def _take(self, entries: Sequence[Entry[Message]]) -> None:
        known = {entry.turn_id: entry for entry in entries if entry.turn_id in self._saved}
        if known:
            # Noted anew: should this fail, they take as long again to come back.
            self.skip(list(known))
            await self._broker.finish(list(known.values()))
            for turn_id in known:
                self._saved.pop(turn_id, None)
            self._log.info("acknowledged turns that the checkpoint holds", count=len(known))
        for entry in entries:
            if entry.turn_id in known or entry.turn_id in self._held:
                continue
            await self._check(entry)
        async with self._arrived:
            self._arrived.notify_all()

    async def _check(self, entry: Entry[Message]) -> None:
        try:
            if not isinstance(entry.message, Sample):
                raise SampleError(f"the stream holds a {type(entry.message).__name__}, expected a Sample")
            read_example(entry.message, self._vocab_size)
        except HintloopError as error:
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
        self.dropped[str(reason)] += 1
        self._waiting = [waiting for waiting in self._waiting if waiting.entry.entry_id != held.entry.entry_id]
        self._held.pop(held.sample.turn_id, None)

    async def refuse(self, held: Held, reason: DropReason, detail: str) -> None:
        """Drop a sample that was collected and cannot be trained."""
        await self._drop(held, reason, detail)

    async def put_back(self, collected: Sequence[Held]) -> None:
        """Let collected samples wait again, before all others."""
        async with self._arrived:
            self._waiting[:0] = collected
            self._arrived.notify_all()

    async def finish(self, trained: Sequence[Held]) -> None:
        """Acknowledge samples that a durable checkpoint holds."""
        turn_ids = [held.sample.turn_id for held in trained]
        # Until the acknowledgement is through they are to be acknowledged when they come again.
        self.skip(turn_ids)
        for turn_id in turn_ids:
            self._held.pop(turn_id, None)
            self._unsaved.pop(turn_id, None)
        await self._broker.finish([held.entry for held in trained])
        for turn_id in turn_ids:
            self._saved.pop(turn_id, None)
        await self._broker.set_trained_pending(len(self._unsaved))

    async def unacknowledged(self) -> list[str]:
        """Turns that are trained and may still be in the stream, whichever run trained them."""
        return [*self._saved, *self._unsaved]

    async def fail(self, held: Held, error: str, max_attempts: int) -> None:
        """Count a failure of a sample; it comes again, or is dead after ``max_attempts``."""
        dead = await self._broker.fail(
            held.entry, stage=Stage.TRAIN, error=error, traceback="", max_attempts=max_attempts
        )
        self._held.pop(held.sample.turn_id, None)
        if not dead:
            # Should it fail, the sample is claimed after the idle time, for no one renews it.
            with contextlib.suppress(DependencyError):
                await self._broker.release(held.entry)

    async def release(self, untrained: Sequence[Held]) -> None:
        """Give back what waits, and ``untrained``, for any trainer to claim at once."""
        for held in [*untrained, *self._waiting]:
            await self._broker.release(held.entry)
            self._held.pop(held.sample.turn_id, None)
        self._waiting.clear()
