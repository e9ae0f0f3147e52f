"""The trainer's side of the `samples` stream: reads ahead, renews what it holds, drops, acknowledges.

Runs in the background thread; the training thread calls it through :class:`background.Background`.
Everything read stays pending in the stream until :meth:`SampleSource.finish`: after a crash it comes again.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from hintloop_contract.broker import RELEASED, Broker, Entry
from hintloop_contract.errors import DependencyError, HintloopError
from hintloop_contract.messages import Drop, DropReason, Message, Sample, Stage
from hintloop_contract.streams import SAMPLES

from hintloop_trainer.admission import Admission
from hintloop_trainer.batch import read_example
from hintloop_trainer.errors import SampleError
from hintloop_trainer.lineage import Lineage

READ_BLOCK_MS = 500
#: How often it is said that something is waited for, seconds.
TELL_S = 10.0
#: Trained turns remembered, against copies of the stream from before they were acknowledged.
MEMORY = 20_000
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Held:
    """A sample and the stream entry that stands for it."""

    sample: Sample
    entry: Entry[Message]


def without_message(entry: Entry[Message]) -> Entry[Any]:
    """What is needed to acknowledge an entry; a sample takes up to some hundred kilobytes."""
    nothing: Any = None
    return replace(entry, message=nothing)


def _as_read(held: Held) -> Held:
    message = held.entry.message
    return Held(message, held.entry) if isinstance(message, Sample) else held


def _position(held: Held) -> tuple[int, int]:
    milliseconds, number = held.entry.entry_id.split("-")
    return int(milliseconds), int(number)


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
        self._saved: dict[str, None] = {}
        """The newest :data:`MEMORY` turns that a durable checkpoint holds, in the order trained: should one come
        again, it is acknowledged and not trained."""
        self._unsaved: dict[str, None] = {}
        """Turns trained since, in order."""
        self._recovered = False
        """Whether all that was pending at the start is held, acknowledged or gone."""
        self._told_s = 0.0
        self._uncounted = 0
        self.dropped: Counter[str] = Counter()
        """Samples dropped by this source, by reason; to be read only."""
        self._arrived = asyncio.Condition()
        self._log = structlog.get_logger()

    def skip(self, turn_ids: Sequence[str]) -> None:
        """These turns are in a durable checkpoint: acknowledge them when they come."""
        self._saved.update(dict.fromkeys(turn_ids))
        for turn_id in list(self._saved)[:-MEMORY]:
            del self._saved[turn_id]

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
                if self._recovered:
                    await self._read()
                else:
                    await self._recover()
            except DependencyError as error:
                self._log.warning("broker away", detail=str(error))
                await asyncio.sleep(RETRY_S)

    async def _renew_and_claim(self) -> None:
        if self._held:
            await self._broker.renew(SAMPLES, self._consumer, list(self._held.values()))
        if self._recovered:
            await self._claim()

    async def _claim(self) -> None:
        free = self._capacity - len(self._waiting)
        if free > 0:
            await self._take(await self._broker.claim(SAMPLES, self._consumer, free, self._claim_idle_ms))

    async def _recover(self) -> None:
        """Take up what an earlier trainer held, in the stream's order and before anything newer.

        What one trainer held was renewed at different times. Only when all of it may be claimed, claims give it in
        order; then batches are formed as they would have been without the interruption.
        """
        holders = await self._broker.holders(SAMPLES)
        holders.pop(self._consumer, None)
        if not any(holder.pending for holder in holders.values()):
            self._recovered = True
            return
        busy = {
            name: holder.pending
            for name, holder in holders.items()
            if holder.pending and name != RELEASED and holder.idle_ms < self._claim_idle_ms
        }
        if busy:
            self._tell("waiting for samples that another trainer held last", holders=busy)
            await asyncio.sleep(READ_BLOCK_MS / 1000)
            return
        await self._claim()
        if len(self._waiting) >= self._capacity:
            await asyncio.sleep(READ_BLOCK_MS / 1000)

    def _tell(self, what: str, **fields: object) -> None:
        """Log it, at most once in :data:`TELL_S`."""
        if time.monotonic() - self._told_s >= TELL_S:
            self._told_s = time.monotonic()
            self._log.warning(what, claim_idle_ms=self._claim_idle_ms, **fields)

    async def _read(self) -> None:
        free = self._capacity - len(self._waiting)
        if free <= 0:
            await asyncio.sleep(READ_BLOCK_MS / 1000)
            return
        await self._take(await self._broker.read(SAMPLES, self._consumer, free, READ_BLOCK_MS))

    async def _take(self, entries: Sequence[Entry[Message]]) -> None:
        known = {entry.turn_id: entry for entry in entries if entry.turn_id in self._saved}
        if known:
            await self._broker.finish(list(known.values()))
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
        # A sample that comes again stands where it stood.
        bisect.insort(self._waiting, Held(entry.message, entry), key=_position)
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

    async def reject(self, entries: Sequence[Entry[Any]], detail: str) -> None:
        """Drop samples that were trained into weights that are given up; those before a failure stay dropped."""
        for entry in entries:
            drop = Drop(
                turn_id=entry.turn_id,
                stage=Stage.TRAIN,
                reason=DropReason.GATE_REJECTED,
                detail=detail,
                tenant=entry.tenant,
            )
            if await self._broker.drop(entry, drop):
                self.dropped[str(DropReason.GATE_REJECTED)] += 1
            self._held.pop(entry.turn_id, None)
            self._unsaved.pop(entry.turn_id, None)
        await self._broker.set_trained_pending(len(self._unsaved))

    async def untrain(self, entries: Sequence[Entry[Any]]) -> None:
        """Give back samples that were trained into weights that are given up: they come again, and may be trained."""
        for entry in entries:
            self._unsaved.pop(entry.turn_id, None)
            self._held.pop(entry.turn_id, None)
            # Should it fail, they are claimed after the idle time, for no one renews them.
            await self._broker.release(entry)
        await self._broker.set_trained_pending(len(self._unsaved))

    async def forget(self, turn_ids: Sequence[str]) -> list[Entry[Any]]:
        """The weights hold ``turn_ids`` and nothing else any more: whatever else comes again may be trained.

        Those of them that wait to be trained need not be: they count as trained, and are to be acknowledged with the
        next checkpoint. These are returned.
        """
        kept = dict.fromkeys(turn_ids)
        trained = [held for held in self._waiting if held.sample.turn_id in kept]
        self._waiting = [held for held in self._waiting if held.sample.turn_id not in kept]
        self._unsaved.update(dict.fromkeys(held.sample.turn_id for held in trained))
        self._saved.clear()
        self.skip([turn_id for turn_id in kept if turn_id not in self._unsaved])
        self._recovered = False
        return [without_message(held.entry) for held in trained]

    async def put_back(self, collected: Sequence[Held]) -> None:
        """Let collected samples wait again, before all others, as they were read.

        What was filled in since was said by weights, or of a choice of theirs, that may be given up by then.
        """
        async with self._arrived:
            self._waiting = sorted([*(_as_read(held) for held in collected), *self._waiting], key=_position)
            self._arrived.notify_all()

    async def finish(self, trained: Sequence[Entry[Any]]) -> None:
        """Acknowledge samples that a durable checkpoint holds."""
        turn_ids = [entry.turn_id for entry in trained]
        # Should the acknowledgement fail, it is made up for when they come again.
        self.skip(turn_ids)
        for turn_id in turn_ids:
            self._held.pop(turn_id, None)
            self._unsaved.pop(turn_id, None)
        num_held = await self._broker.finish(trained)
        if num_held < len(trained):
            self._log.error(
                "trained samples are not in the stream any more: Redis lost data, or another trainer took them; "
                "those that come again are not trained",
                missing=len(trained) - num_held,
            )
        await self._broker.set_trained_pending(len(self._unsaved))

    async def unacknowledged(self) -> list[str]:
        """Turns that are trained and that no durable checkpoint holds, in the order trained."""
        return list(self._unsaved)

    async def in_weights(self) -> list[str]:
        """The newest turns that are trained, oldest first, whichever run trained them; all that are unacknowledged."""
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
