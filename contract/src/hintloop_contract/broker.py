"""The one interface to the streams: atomic hops, claims, renewal, failures, records and counts.

Owns what an operation means; `redis_broker` does it with Lua on Redis, `testing.memory` in memory for tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from hintloop_contract.codec import PackedMessage
from hintloop_contract.control import ControlOutcome, ControlRequest, Pause
from hintloop_contract.history import HistoryEntry, HistoryState, Note
from hintloop_contract.messages import Capture, Drop, Message, TurnNote, TurnRecord
from hintloop_contract.streams import Stream

if TYPE_CHECKING:
    from hintloop_contract.diagnosis.alarms import Alarm, AlarmState
    from hintloop_contract.diagnosis.figures import RedisRoom

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Entry(Generic[M]):
    """A message held by this consumer until it is committed, dropped or released."""

    stream: Stream
    entry_id: str
    turn_id: str
    message: M
    tenant: str = "default"
    traceparent: str = ""


class Appended(IntEnum):
    """What became of one message of a batch."""

    DONE = 1
    SEEN = 0
    """Its turn id was appended before."""
    FULL = -1
    """The stream had reached its bound."""


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """``length`` entries in the stream, of which ``pending`` are held by a consumer."""

    length: int
    pending: int


#: Consumer that holds what was released.
RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Holder:
    """A consumer of a stream's group: ``pending`` entries, and the milliseconds since it was last heard of."""

    pending: int
    idle_ms: int


@dataclass(frozen=True, slots=True)
class Funnel:
    """Counts since the deployment began: funnel steps, and drops by ``(stage, reason)``."""

    steps: dict[str, int] = field(default_factory=dict)
    drops: dict[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightsState:
    """``current`` released version, and the one being published now (``updating``), if any."""

    current: int | None = None
    updating: int | None = None


class Broker(Protocol):
    """Streams, records and counts of one policy. Every method raises ``DependencyError`` when Redis is away."""

    async def time_ms(self) -> int:
        """Redis time, milliseconds."""
        ...

    async def ensure_groups(self) -> None:
        """Create every consumer group at id 0, if missing."""
        ...

    async def append(self, stream: Stream, message: Message, *, tenant: str = "default", traceparent: str = "") -> bool:
        """Append a message that has no input message; false when its turn id was appended before."""
        ...

    async def append_many(
        self, stream: Stream, batch: Sequence[PackedMessage], *, bound: int = 0, under: WeightsState | None = None
    ) -> list[Appended] | None:
        """Append in order and in one step, each guarded like :meth:`append`; none past ``bound`` entries (0: any), and
        ``None`` without appending any when the weights are no longer ``under``."""
        ...

    async def read(self, stream: Stream, consumer: str, count: int, block_ms: int) -> list[Entry[Message]]:
        """Read up to ``count`` new messages for the stream's group. Undecodable ones go to `dead` at once."""
        ...

    async def reread(self, stream: Stream, consumer: str, count: int, after: str = "0") -> list[Entry[Message]]:
        """Messages that ``consumer`` already holds, in order, after entry id ``after``."""
        ...

    async def claim(self, stream: Stream, consumer: str, count: int, idle_ms: int) -> list[Entry[Message]]:
        """Take over messages that no one renewed for ``idle_ms``."""
        ...

    async def renew(self, stream: Stream, consumer: str, entry_ids: Sequence[str]) -> None:
        """Tell the others that ``consumer`` still works on these."""
        ...

    async def release(self, entry: Entry[Message]) -> None:
        """Give a held message up so that any worker can claim it at once."""
        ...

    async def commit(
        self,
        entry: Entry[Message],
        out: Stream,
        message: Message,
        *,
        counters: Sequence[str] = (),
        record: TurnRecord | None = None,
        fence: int | None = None,
    ) -> bool:
        """Acknowledge, delete and append in one step; false when another finished first, or the fence is old."""
        ...

    async def drop(self, entry: Entry[Message] | None, drop: Drop, *, fence: int | None = None) -> bool:
        """Acknowledge and delete ``entry`` (if any), append the drop and count it; false when already done."""
        ...

    async def drop_many(self, drops: Sequence[Drop]) -> None:
        """Append and count drops that have no input message, each guarded by its turn id, in one round trip."""
        ...

    async def finish(self, entries: Sequence[Entry[Message]]) -> int:
        """Acknowledge and delete entries whose effect is durable; the number that was still held."""
        ...

    async def fail(self, entry: Entry[Message], *, stage: str, error: str, traceback: str, max_attempts: int) -> bool:
        """Count a failure of this message; true when it went to `dead` (with a drop) for the ``max_attempts``-th."""
        ...

    async def get_turn(self, turn_id: str) -> TurnRecord | None:
        """The turn's record, or ``None`` when it was freed."""
        ...

    async def counts(self, stream: Stream) -> StreamCounts:
        """Length and pending of a stream."""
        ...

    async def holders(self, stream: Stream) -> dict[str, Holder]:
        """The consumers of the stream's group by name; :data:`RELEASED` holds what anyone may claim."""
        ...

    async def untrained(self) -> int:
        """Turns let in and not yet trained: turns + judged + samples - trained but unacknowledged."""
        ...

    async def count(self, step: str, amount: int = 1) -> None:
        """Add to a funnel step."""
        ...

    async def funnel(self) -> Funnel:
        """Funnel counts."""
        ...

    async def set_trained_pending(self, amount: int) -> None:
        """Say how many samples are trained and not yet acknowledged."""
        ...

    async def next_version(self) -> int:
        """A version number never used before."""
        ...

    async def describe_version(self, version: int, fields: dict[str, str]) -> None:
        """Store ``step, run, parent, weights_hash`` of a version."""
        ...

    async def version_notes(self, version: int) -> dict[str, str]:
        """What :meth:`describe_version` stored; empty when nothing was."""
        ...

    async def weights(self) -> WeightsState:
        """Which version is released, and which is being published."""
        ...

    async def set_weights(self, state: WeightsState) -> None:
        """Record the released version and the one being published."""
        ...

    async def inflight_add(self, turn_id: str, start_ms: int) -> None:
        """A request is being answered."""
        ...

    async def inflight_remove(self, turn_id: str) -> None:
        """It is answered."""
        ...

    async def inflight_update(self, begun: Mapping[str, int], ended: Sequence[str]) -> None:
        """Requests being answered by their arrival in milliseconds, and such as are answered, in one round trip."""
        ...

    async def inflight_oldest(self, newer_than_ms: int) -> int | None:
        """Arrival of the oldest request still being answered that arrived after ``newer_than_ms``."""
        ...

    async def acquire_lease(self, owner: str, lease_ms: int) -> int | None:
        """Become (or stay) the active linker: the fencing token, or ``None`` while another holds the lease."""
        ...

    async def note_turns(self, notes: Sequence[TurnNote], *, keep_ms: int, most: int, fence: int | None = None) -> bool:
        """Add notes in order, kept for ``keep_ms`` and ``most`` of them in all; false when the fence is old."""
        ...

    async def turn_notes(self, *, since_ms: int, most: int) -> list[TurnNote]:
        """The newest notes that were added since then (Redis time), oldest first."""
        ...

    async def remove_idle_consumers(self, stream: Stream, idle_ms: int) -> int:
        """Remove consumers of the stream's group that hold nothing and were silent for ``idle_ms``."""
        ...

    async def set_status(self, service: str, fields: dict[str, str], *, afresh: bool = False) -> None:
        """Write what a service says about itself; ``afresh``: nothing that was said before stays."""
        ...

    async def get_status(self, service: str) -> dict[str, str]:
        """Read what a service says about itself."""
        ...

    async def keep(self, kind: str, name: str, value: bytes, *, ttl_s: int, max_entries: int) -> None:
        """Keep a value that may be lost at any time; past ``max_entries`` of its kind the oldest go."""
        ...

    async def kept(self, kind: str, name: str) -> bytes | None:
        """A kept value, or ``None``."""
        ...

    async def remember(self, notes: Sequence[Note], *, tenant: str = "default") -> None:
        """Add notes to the history, in order; nothing when it is off."""
        ...

    async def history(self, after: str = "0-0", count: int = 100, block_ms: int | None = None) -> list[HistoryEntry]:
        """Entries after id ``after``, oldest first; waits up to ``block_ms`` for one (``None``: not at all)."""
        ...

    async def history_state(self) -> HistoryState:
        """How much history there is."""
        ...

    async def ask_control(self, request: ControlRequest) -> str:
        """Put a request to the trainer; its id."""
        ...

    async def next_control(self) -> tuple[str, ControlRequest] | None:
        """The oldest request that is not settled, with its id."""
        ...

    async def accept_control(self, request_id: str, detail: str = "") -> bool:
        """Say that it is being carried out; false when it was withdrawn."""
        ...

    async def withdraw_control(self, request_id: str) -> bool:
        """Take a request back; false when the trainer has begun with it."""
        ...

    async def settle_control(self, request_id: str, outcome: ControlOutcome, *, pause: Pause | None) -> None:
        """End a request, and pause training or not, in one step."""
        ...

    async def control_outcome(self, request_id: str) -> ControlOutcome | None:
        """What became of a request; ``None`` while the trainer has not seen it."""
        ...

    async def paused(self) -> Pause | None:
        """Why training stands still, or ``None`` when it does not."""
        ...

    async def set_alarms(
        self, owner: str, looked_ms: int, active: Sequence[Alarm], ended: Sequence[Alarm], *, lease_ms: int
    ) -> bool:
        """Say which alarms stand and which ended; false when another than ``owner`` says so now (for ``lease_ms``)."""
        ...

    async def alarms(self) -> AlarmState:
        """Which alarms stand, and which ended."""
        ...

    async def redis_room(self) -> RedisRoom:
        """How much memory Redis uses, and may use."""
        ...

    async def waiting_captures(self, count: int) -> list[Capture]:
        """Up to ``count`` of the newest captures whose turn is not decided yet, newest first; they stay there."""
        ...

    async def newest_drops(self, count: int) -> list[Drop]:
        """Up to ``count`` of the newest drops, newest first."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
