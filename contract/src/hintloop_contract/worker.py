"""A stream worker's loop: read what there are free slots for, renew, claim, commit; pause on absent dependencies.

Owns scheduling; what is done with a message is the handler's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from hintloop_contract.broker import Broker, Entry
from hintloop_contract.errors import DependencyError
from hintloop_contract.ids import consumer_name
from hintloop_contract.messages import Drop, Message
from hintloop_contract.streams import Stream

IDLE_CONSUMER_MS = 600_000
MAX_BACKOFF_S = 10.0


@dataclass(frozen=True, slots=True)
class Forward:
    """Outcome: pass ``message`` to the worker's output stream; ``counters`` are funnel steps besides its own."""

    message: Message
    counters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Discard:
    """Outcome: drop the turn as ``reason``."""

    reason: str
    detail: str = ""


Outcome = Forward | Discard
Handler = Callable[[Entry[Any]], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """``stage`` names drops; ``slots`` messages are worked on at once; ``sink_bound`` stops reading when reached."""

    service: str
    stage: str
    source: Stream
    sink: Stream
    slots: int = 8
    claim_idle_ms: int = 60_000
    max_attempts: int = 3
    block_ms: int = 500
    sink_bound: int | None = None
    grace_s: float = 10.0


class StreamWorker:
    """Runs a handler over a stream until told to stop. Every message ends committed, dropped, dead or released."""

    def __init__(
        self,
        broker: Broker,
        options: WorkerOptions,
        handler: Handler,
        dependency_ready: Callable[[], Awaitable[bool]],
    ) -> None:
        """``dependency_ready`` says whether what the handler depends on is back."""
        self._broker = broker
        self._options = options
        self._handler = handler
        self._ready = dependency_ready
        self._consumer = consumer_name(options.service)
        self._held: dict[str, Entry[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._absent: str | None = None
        self._last_claim = 0.0
        self._log = structlog.get_logger().bind(service=options.service)

    @property
    def paused(self) -> str | None:
        """The dependency that is away, or ``None`` while the worker reads."""
        return self._absent

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set, then let running messages end within the grace and release the rest."""
        renewal = asyncio.create_task(self._renew_forever())
        try:
            while not stop.is_set():
                try:
                    await self._turn(stop)
                except DependencyError as error:
                    await self._wait_for_dependency(error, stop)
        finally:
            await self._shut_down()
            renewal.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewal

    async def _turn(self, stop: asyncio.Event) -> None:
        if self._absent is not None:
            await self._wait_for_dependency(DependencyError(self._absent, "reported by a message"), stop)
            return
        free = self._options.slots - len(self._tasks)
        if free <= 0:
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({*self._tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            return
        if await self._sink_full():
            await _pause(stop, self._options.block_ms / 1000)
            return
        for entry in await self._next(free):
            if self._absent is not None:  # it went away while the read was waiting
                await self._broker.release(entry)
                continue
            self._held[entry.entry_id] = entry
            task = asyncio.create_task(self._process(entry, stop))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _sink_full(self) -> bool:
        bound = self._options.sink_bound
        return bound is not None and (await self._broker.counts(self._options.sink)).length >= bound

    async def _next(self, free: int) -> list[Entry[Any]]:
        options = self._options
        entries: list[Entry[Any]] = []
        if time.monotonic() - self._last_claim > min(5.0, options.claim_idle_ms / 2000):
            entries = await self._broker.claim(options.source, self._consumer, free, options.claim_idle_ms)
            await self._broker.remove_idle_consumers(options.source, IDLE_CONSUMER_MS)
            # Claim again at once while there is more to claim than there were slots for.
            self._last_claim = 0.0 if len(entries) == free else time.monotonic()
        if len(entries) < free:
            block_ms = 1 if entries else options.block_ms
            entries += await self._broker.read(options.source, self._consumer, free - len(entries), block_ms)
        return [entry for entry in entries if entry.entry_id not in self._held]

    async def _process(self, entry: Entry[Any], stop: asyncio.Event) -> None:
        try:
            await self._handle(entry, stop)
        except Exception:
            # Not settled and no longer renewed: it is claimed after the idle time. A cancelled task stays
            # among the held ones, for the shutdown to release.
            self._log.exception("message could not be settled", turn_id=entry.turn_id)
        self._held.pop(entry.entry_id, None)

    async def _handle(self, entry: Entry[Any], stop: asyncio.Event) -> None:
        try:
            outcome = await self._handler(entry)
        except DependencyError as error:
            self._absent = error.dependency
            self._log.warning("dependency away", dependency=error.dependency, detail=error.detail)
            await self._persist(lambda: self._broker.release(entry), stop)
        except Exception as error:  # recorded with its traceback, and in `dead` after the last attempt
            await self._record_failure(entry, error, stop)
        else:
            await self._persist(lambda: self._settle(entry, outcome), stop)

    async def _settle(self, entry: Entry[Any], outcome: Outcome) -> None:
        if isinstance(outcome, Forward):
            await self._broker.commit(entry, self._options.sink, outcome.message, counters=outcome.counters)
            return
        drop = Drop(
            turn_id=entry.turn_id,
            stage=self._options.stage,
            reason=str(outcome.reason),
            detail=outcome.detail,
            tenant=entry.tenant,
        )
        await self._broker.drop(entry, drop)

    async def _record_failure(self, entry: Entry[Any], error: Exception, stop: asyncio.Event) -> None:
        trace = "".join(traceback.format_exception(error))
        text = f"{type(error).__name__}: {error}"
        self._log.error("message failed", turn_id=entry.turn_id, error=text, traceback=trace)

        async def record() -> None:
            options = self._options
            dead = await self._broker.fail(
                entry, stage=options.stage, error=text, traceback=trace, max_attempts=options.max_attempts
            )
            if not dead:
                await self._broker.release(entry)

        await self._persist(record, stop)

    async def _persist(self, effect: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
        """Bring an effect to Redis, however long it is away: the work behind it is paid for."""
        attempt = 0
        while True:
            try:
                await effect()
                return
            except DependencyError as error:
                if stop.is_set():
                    self._log.warning("effect lost to shutdown; the message will be claimed", detail=error.detail)
                    return
                attempt += 1
                await _pause(stop, _backoff_s(attempt))

    async def _wait_for_dependency(self, error: DependencyError, stop: asyncio.Event) -> None:
        self._absent = error.dependency
        self._log.warning("reading paused", dependency=error.dependency, detail=error.detail)
        attempt = 0
        while not stop.is_set():
            attempt += 1
            await _pause(stop, _backoff_s(attempt))
            if await self._is_back(error.dependency):
                break
        self._absent = None
        self._log.info("reading resumed", dependency=error.dependency)

    async def _is_back(self, dependency: str) -> bool:
        try:
            if dependency == "redis":
                await self._broker.time_ms()
                return True
            return await self._ready()
        except DependencyError:
            return False

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._options.claim_idle_ms / 3000)
            try:
                await self._broker.renew(self._options.source, self._consumer, list(self._held))
            except Exception as error:  # a lost renewal costs a second judgement at most; a dead loop, all of them
                self._log.warning("renewal failed", error=f"{type(error).__name__}: {error}")

    async def _shut_down(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._options.grace_s)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for entry in list(self._held.values()):
            with contextlib.suppress(DependencyError):
                await self._broker.release(entry)
        self._held.clear()


def _backoff_s(attempt: int) -> float:
    return float(min(MAX_BACKOFF_S, 0.25 * 2 ** min(attempt, 8)) * random.uniform(0.5, 1.0))


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
