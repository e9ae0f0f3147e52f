"""Runs the linker against the streams: one active per policy, by a lease with a fencing token.

Captures stay pending until their turn is settled, so whoever becomes active rebuilds the state by reading them again.
A capture that the linker cannot work with goes to `dead` alone; it stops no other.
"""

from __future__ import annotations

import asyncio
import heapq
import time
import traceback
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import structlog
from hintloop_contract.broker import Broker, Entry
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_contract.ids import consumer_name
from hintloop_contract.messages import Capture, DropReason, Stage
from hintloop_contract.messages import Drop as DropMessage
from hintloop_contract.streams import CAPTURES, TURNS

from hintloop_rollout_proxy.capture_log import CaptureLog
from hintloop_rollout_proxy.errors import said
from hintloop_rollout_proxy.flight import REGISTER_WITHIN_MS
from hintloop_rollout_proxy.gaps import GapWatch
from hintloop_rollout_proxy.linking import Decision, Drop, Link, Linker, LinkerOptions
from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.turns import find_obstacle, linked_turn, turn_record

READ_COUNT = 100
BLOCK_MS = 100
RETRY_S = 0.5
#: Seconds after Redis' return during which no deadline passes: spooled captures come in first.
CALM_S = 5.0

log = structlog.get_logger()


@dataclass(slots=True)
class Lease:
    """The right to decide: ``token`` fences every write, ``renew_at`` is monotonic seconds."""

    token: int
    renew_at: float


class LinkerTask:
    """Links the captures of one policy while it holds the lease."""

    def __init__(self, broker: Broker, config: Config, metrics: ProxyMetrics) -> None:
        """Link what ``broker`` holds."""
        self._broker = broker
        self._config = config
        self._metrics = metrics
        self._consumer = consumer_name("rollout-proxy")
        self._lease_ms = config.linker.lease_ms
        self._lease: Lease | None = None
        self._session_timeout_ms = int(config.rollout.session_timeout_sec * 1000)
        self._linker = self._make_linker()
        self._pending: dict[str, Entry[Any]] = {}
        self._held: list[tuple[int, int, int, Entry[Any]]] = []
        self._todo: deque[Decision] = deque()
        self._calm_until = 0.0
        self._regain = False
        # Each proxy brings its spool back; until all have, what came is kept for its order.
        self._gather_until = 0.0
        self._gaps = GapWatch(broker, metrics, config.rollout.session_timeout_sec)
        path = config.linker.capture_log
        self._log = None if path is None else CaptureLog(path)

    def _make_linker(self) -> Linker:
        rollout = self._config.rollout
        return Linker(
            LinkerOptions(
                settle_ms=self._config.linker.settle_ms,
                session_timeout_ms=self._session_timeout_ms,
                max_turns_per_session=rollout.max_turns_per_session,
                grace_ms=REGISTER_WITHIN_MS,
                doubt_ms=self._config.linker.doubt_ms,
                max_requests=self._config.linker.max_requests,
            )
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Link until ``stop``. Undecided captures stay pending for whoever comes next."""
        while not stop.is_set():
            try:
                if await self._hold_lease():
                    await self._take_undelivered()
                    await self.step()
                else:
                    await asyncio.sleep(self._lease_ms / 3000)
            except DependencyError as error:
                log.warning("linker waits", error=str(error))
                self._calm_until = self._gather_until = time.monotonic() + CALM_S
                self._regain = True
                await asyncio.sleep(RETRY_S)
        self._metrics.active.set(0)

    async def _hold_lease(self) -> bool:
        """Acquire or renew when due. Rebuilds the state unless nobody else can have decided in between."""
        if self._lease is not None and time.monotonic() < self._lease.renew_at:
            return True
        token = await self._broker.acquire_lease(self._consumer, self._lease_ms)
        # The lease is known as ours only once the state behind it is whole: a failure below begins from here again.
        before, self._lease = self._lease, None
        if token is None:
            self._metrics.active.set(0)
            await self._give_up()
            return False
        renew_at = time.monotonic() + self._lease_ms / 3000
        if before is None or token > before.token + 1:
            await self._rebuild(token)
            log.info("linker active", token=token, pending=len(self._pending))
        await self._broker.renew(CAPTURES, self._consumer, [entry.entry_id for entry in self._pending.values()])
        await self._take_left_over(token)
        self._lease = Lease(token, renew_at)
        self._metrics.active.set(1)
        return True

    async def _give_up(self) -> None:
        """Another links: hand over at once what it does not hold yet."""
        while self._pending:
            turn_id, entry = next(iter(self._pending.items()))
            await self._broker.release(entry)
            del self._pending[turn_id]
        self._held.clear()
        self._todo.clear()

    async def _take_left_over(self, token: int) -> None:
        """Claim what a linker read that no longer had the lease. It is older than what was linked since: rebuild."""
        # A linker renews what it holds with its lease, a third of its length apart.
        late = [entry for entry in await self._claim(self._lease_ms // 2) if entry.turn_id not in self._pending]
        if late:
            log.warning("captures left by another linker", num=len(late))
            await self._rebuild(token)

    async def _take_undelivered(self) -> None:
        """Hold what Redis gave out to us as it went away, and that never arrived: in its place, before anything that
        came later is linked."""
        if not self._regain:
            return
        self._hold(await self._reread())
        self._regain = False

    async def _reread(self) -> list[Entry[Any]]:
        """All that was given out to us and is not settled."""
        held: list[Entry[Any]] = []
        after = "0"
        while entries := await self._broker.reread(CAPTURES, self._consumer, READ_COUNT, after):
            held.extend(entries)
            after = entries[-1].entry_id
        return held

    async def _rebuild(self, token: int) -> None:
        """Read again what is pending: our own, and what earlier linkers left; and what is kept of what they settled.

        Left is all that another holds: whoever lost the lease writes nothing any more. Were what it read last taken
        only once it is idle, what came after would be linked before it, and its own next state be forgotten.
        """
        self._linker = self._make_linker()
        self._todo.clear()
        self._pending = {}
        self._calm_until = time.monotonic() + CALM_S
        held = await self._reread()
        began = time.monotonic()
        # What was taken since then is idle for less.
        while entries := await self._claim(int((time.monotonic() - began) * 1000) + 1):
            held.extend(entries)
        self._held = []
        self._hold({entry.entry_id: entry for entry in held}.values())
        if token > 1:
            await self._resume()
        await self._feed(self._ready(None))

    async def _resume(self) -> None:
        """Go on with the sessions of turns that were settled. What is pending is not, whoever noted that it is."""
        now_ms = await self._broker.time_ms()
        self._linker.knows_nothing_before(now_ms)
        oldest_ms = min((entry.message.start_ms for entry in self._pending.values()), default=now_ms)
        since_ms = min(oldest_ms, now_ms) - self._session_timeout_ms
        notes = await self._broker.turn_notes(since_ms=since_ms, most=self._config.linker.max_requests)
        self._linker.resume(note for note in notes if note.turn_id not in self._pending)
        log.info("linker resumes", notes=len(notes))

    async def _claim(self, idle_ms: int) -> list[Entry[Any]]:
        return await self._broker.claim(CAPTURES, self._consumer, READ_COUNT, idle_ms)

    def _hold(self, entries: Iterable[Entry[Any]]) -> None:
        """Keep captures until those that ended before them are in, whichever proxy wrote them."""
        for entry in entries:
            if entry.turn_id not in self._pending:
                self._pending[entry.turn_id] = entry
                heapq.heappush(self._held, (entry.message.end_ms, *_stream_order(entry), entry))

    def _ready(self, before_ms: int | None) -> list[Entry[Any]]:
        """Captures that ended before ``before_ms`` (all for ``None``), in the order in which they ended."""
        ready = []
        while self._held and (before_ms is None or self._held[0][0] <= before_ms):
            ready.append(heapq.heappop(self._held)[-1])
        return ready

    async def _feed(self, entries: Iterable[Entry[Any]]) -> None:
        for entry in entries:
            try:
                decisions = self._linker.feed(entry.message)
                self._gaps.observe(decisions, self._linker.late_ms)
                self._todo.extend(decisions)
            except Exception as error:  # noqa: BLE001 - one capture, whatever is wrong with it
                await self._bury(entry, error)

    async def _bury(self, entry: Entry[Any], error: Exception) -> None:
        """Send a capture to `dead`: it would fail again each time, and keep everything behind it waiting."""
        text = f"{type(error).__name__}: {error!s:.500}"
        log.error("capture cannot be linked", turn_id=entry.turn_id, error=said(error))
        # The end of the traceback says where; a deep recursion's is long.
        trace = "".join(traceback.format_exception(error, limit=-20))
        await self._broker.fail(entry, stage=str(Stage.LINK), error=text, traceback=trace, max_attempts=1)
        self._metrics.dropped.labels(str(DropReason.DEAD)).inc()
        self._pending.pop(entry.turn_id, None)

    async def step(self) -> None:
        """Read, link, settle, write: once."""
        now_ms = await self._broker.time_ms()
        # Asked before reading: whatever is no longer in flight by now has its capture in the stream.
        horizon_ms = now_ms - int(self._config.proxy.request_timeout_s * 1000) - 60_000
        oldest_ms = await self._broker.inflight_oldest(horizon_ms)
        entries = await self._broker.read(CAPTURES, self._consumer, READ_COUNT, BLOCK_MS)
        if self._log is not None and entries:
            await asyncio.to_thread(
                self._log.write, [entry.message for entry in entries if isinstance(entry.message, Capture)]
            )
        self._hold(entries)
        until_ms = now_ms - self._config.linker.reorder_ms
        if time.monotonic() >= self._gather_until:
            await self._feed(self._ready(until_ms))
        if len(entries) < READ_COUNT and time.monotonic() >= self._calm_until:
            begun = [entry.message.start_ms for *_, entry in self._held]
            oldest = min(begun if oldest_ms is None else [oldest_ms, *begun], default=None)
            self._todo.extend(self._linker.tick(until_ms, oldest))
        await self._apply()
        await self._gaps.write()
        self._metrics.pending.set(len(self._pending))

    async def flush(self) -> None:
        """Settle everything now (tests, imports)."""
        await self._feed(self._ready(None))
        self._todo.extend(self._linker.flush())
        await self._apply()

    async def _apply(self) -> None:
        """Write what was decided, in order. What cannot be written stays for the next time."""
        if not self._todo:
            return
        await self._note_turns()
        room = self._config.admission_limit - await self._broker.untrained()
        now_ms = await self._broker.time_ms()
        while self._todo:
            decision = self._todo[0]
            try:
                if isinstance(decision, Link):
                    room -= await self._link(decision, room, now_ms)
                elif isinstance(decision, Drop):
                    await self._drop(decision.turn_id, decision.reason, decision.detail)
            except DependencyError:
                raise
            except Exception as error:  # noqa: BLE001 - one turn, whatever is wrong with it
                if (entry := self._pending.get(decision.turn_id)) is not None:
                    await self._bury(entry, error)
            self._todo.popleft()

    async def _note_turns(self) -> None:
        """Note for the next linker where turns stood, before they are settled: what is settled cannot be read again."""
        notes = [decision.note for decision in self._todo if isinstance(decision, Link | Drop) and decision.note]
        if notes:
            # A request that arrived in time may be answered that much later.
            keep_ms = self._session_timeout_ms + int(self._config.proxy.request_timeout_s * 1000)
            most = self._config.linker.max_requests
            await self._broker.note_turns(notes, keep_ms=keep_ms, most=most, fence=self._token)

    async def _link(self, link: Link, room: int, now_ms: int) -> int:
        """Release a turn unless something forbids it; how much room it took."""
        entry = self._pending.get(link.turn_id)
        if entry is None:
            return 0
        capture: Capture = entry.message
        obstacle = find_obstacle(capture, link, self._config.training)
        if obstacle is None and room < 1:
            obstacle = (
                DropReason.BACKPRESSURE,
                f"{self._config.admission_limit} turns wait untrained already (max_staleness_steps x train_batch_size)",
            )
        if obstacle is not None:
            await self._drop(link.turn_id, *obstacle)
            return 0
        turn, record = linked_turn(capture, link, now_ms), turn_record(capture, link)
        done = await self._broker.commit(entry, TURNS, turn, record=record, fence=self._token)
        self._pending.pop(link.turn_id)
        if done:
            self._metrics.linked.inc()
        return int(done)

    async def _drop(self, turn_id: str, reason: str, detail: str) -> None:
        entry = self._pending.get(turn_id)
        if entry is None:
            return
        stage = Stage.CAPTURE if reason == entry.message.problem else Stage.LINK
        drop = DropMessage(
            turn_id=turn_id, stage=str(stage), reason=str(reason), detail=detail, tenant=entry.message.tenant
        )
        if await self._broker.drop(entry, drop, fence=self._token):
            self._metrics.dropped.labels(str(reason)).inc()
        self._pending.pop(turn_id)

    @property
    def _token(self) -> int | None:
        return None if self._lease is None else self._lease.token


def _stream_order(entry: Entry[Any]) -> tuple[int, int]:
    milliseconds, _, number = entry.entry_id.partition("-")
    return int(milliseconds), int(number)
