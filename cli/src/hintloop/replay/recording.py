"""The broker and the judge's backend of a replay: what passes through them is written into the store first.

The services' own workers use them unchanged. The store is told before the stream, so that what a stream holds no more
is always known.
"""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from typing import Any

from hintloop_contract.broker import Entry
from hintloop_contract.codec import decode_fields, encode_payload
from hintloop_contract.history import Trained
from hintloop_contract.messages import Drop, JudgedTurn, LinkedTurn, Message, Sample, TurnRecord
from hintloop_contract.redis_broker import RedisBroker
from hintloop_contract.redis_connection import available
from hintloop_contract.streams import DROPS, TURNS, Stream
from hintloop_judge.backends import Backend, Opinion
from hintloop_judge.conversation import Exchange

from hintloop.replay.store import Store

#: Entries that are looked at in one go.
PAGE = 500
#: What the judge said last in this task; one task works on one turn.
_opinion: contextvars.ContextVar[Opinion | None] = contextvars.ContextVar("opinion", default=None)


class RecordingBroker(RedisBroker):
    """A side's streams. Judgements and samples are noted in the store as they are committed."""

    def __init__(self, client: Any, policy: str, store: Store, side: str) -> None:
        # A finished turn's record is of no more use here.
        super().__init__(client, policy, turn_retention_s=0)
        self._store = store
        self._side = side

    async def commit(
        self,
        entry: Entry[Any],
        out: Stream,
        message: Message,
        *,
        counters: Sequence[str] = (),
        record: TurnRecord | None = None,
        fence: int | None = None,
    ) -> bool:
        """Note what is passed on, and pass it on."""
        if isinstance(message, JudgedTurn):
            self._store.judged(self._side, message.turn_id, message.judgement)
        elif isinstance(message, Sample):
            self._store.taught(self._side, message)
        return await super().commit(entry, out, message, counters=counters, record=record, fence=fence)

    async def drop(self, entry: Entry[Any] | None, drop: Drop, *, fence: int | None = None) -> bool:
        """Note what the judge said of a turn that it drops; the drop itself is read from the stream."""
        said = _opinion.get()
        if entry is not None and entry.stream is TURNS and said is not None:
            self._store.judged(self._side, drop.turn_id, said.judgement)
        return await super().drop(entry, drop, fence=fence)

    @available
    async def release_turn(self, turn: LinkedTurn, record: TurnRecord) -> None:
        """Give a turn to the judge, once: what was given before an interruption is not given again."""
        if await self.client.exists(self.keys.seen(turn.turn_id)):
            return
        await self.client.set(self.keys.turn(turn.turn_id), encode_payload(record))
        await self.append(TURNS, turn, tenant=turn.tenant)

    @available
    async def read_drops(self) -> int:
        """Take drops that are new into the store, and out of the stream; how many there were."""
        after = self._store.note(self._side, "drops") or "0-0"
        key = self.keys.stream(DROPS)
        found = await self.client.xrange(key, min=f"({after}", count=PAGE)
        if found:
            cursor = found[-1][0].decode()
            self._store.dropped(self._side, [decode_fields(fields, Drop) for _, fields in found], cursor)
            await self.client.xtrim(key, minid=cursor, approximate=False)
        return len(found)

    async def read_trained(self) -> int:
        """Take what the trainer noted of turns into the store; how many entries were looked at."""
        after = self._store.note(self._side, "history") or "0-0"
        entries = await self.history(after, PAGE)
        if entries:
            notes = [entry.message for entry in entries if isinstance(entry.message, Trained)]
            self._store.trained(self._side, notes, entries[-1].entry_id)
        return len(entries)

    @available
    async def unused(self, stream: Stream) -> list[str]:
        """Ids of the turns whose entries are still in a stream."""
        found = await self.client.xrange(self.keys.stream(stream))
        return [fields[b"turn_id"].decode() for _, fields in found]

    @available
    async def copy_kept(self, kind: str, policy: str) -> None:
        """Take over what another policy on this Redis kept of one kind, as far as it is not known here."""
        theirs = type(self.keys)(policy)
        for raw, score in await self.client.zrange(theirs.kept_index(kind), 0, -1, withscores=True):
            name = raw.decode()
            if await self.client.copy(theirs.kept(kind, name), self.keys.kept(kind, name)):
                await self.client.zadd(self.keys.kept_index(kind), {name: score})


class RecordingBackend:
    """A judge's backend; what it said last is at hand for the broker."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name = backend.name

    @property
    def model(self) -> str | None:
        """The model asked, if any."""
        return self._backend.model

    def describe(self) -> dict[str, Any]:
        """What the backend shows of itself."""
        return self._backend.describe()

    async def judge(self, exchange: Exchange, *, score: bool, hint: bool) -> Opinion:
        """Ask the backend. Raises ``DependencyError`` when what it depends on is away."""
        opinion = await self._backend.judge(exchange, score=score, hint=hint)
        _opinion.set(opinion)
        return opinion

    async def ready(self) -> bool:
        """Whether what the backend depends on is there."""
        return await self._backend.ready()

    async def close(self) -> None:
        """Close connections."""
        await self._backend.close()
