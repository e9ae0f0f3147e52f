"""The history on Redis: noting, reading and counting. What is kept within hops stands in `scripts`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from hintloop_contract import scripts
from hintloop_contract.codec import FIELDS, PackedMessage, decode_fields, decode_payload, encode_payload, field_values
from hintloop_contract.errors import MessageError
from hintloop_contract.history import (
    CARRIED,
    KIND_OF,
    HistoryBounds,
    HistoryEntry,
    HistoryKind,
    HistoryState,
    Note,
    split_notes,
    turn_of,
)
from hintloop_contract.messages import TurnRecord
from hintloop_contract.redis_connection import available
from hintloop_contract.streams import Keys

#: Most notes that one script takes.
NOTES_AT_ONCE = 32


class RedisHistory:
    """The part of the broker for the history."""

    client: Any
    keys: Keys
    policy: str

    def __init__(self, client: Any, bounds: HistoryBounds | None) -> None:
        """Without ``bounds`` nothing is noted."""
        self._bounds = bounds
        self._remember = client.register_script(scripts.REMEMBER)

    def _history_args(self, kind: str | None) -> list[Any]:
        """What a script is told of the history; an empty kind: nothing is noted."""
        bounds = self._bounds
        if bounds is None or not kind:
            return ["", 0, 0]
        return [kind, bounds.max_entries, bounds.max_bytes]

    @property
    def _history_keys(self) -> list[str]:
        return [self.keys.history, self.keys.history_bytes]

    @available
    async def remember(self, notes: Sequence[Note], *, tenant: str = "default") -> None:
        """Add notes to the history, in order; nothing when it is off."""
        if self._bounds is None:
            return
        for portion in split_notes(notes, NOTES_AT_ONCE):
            args: list[Any] = [self._bounds.max_entries, self._bounds.max_bytes, len(FIELDS), *FIELDS]
            for note in portion:
                packed = PackedMessage(turn_of(note), encode_payload(note), tenant)
                args += [KIND_OF[type(note)].value, *field_values(packed, self.policy)]
            await self._remember(keys=self._history_keys, args=args)

    @available
    async def history(self, after: str = "0-0", count: int = 100, block_ms: int | None = None) -> list[HistoryEntry]:
        """Entries after id ``after``, oldest first; waits up to ``block_ms`` for one (``None``: not at all)."""
        key = self.keys.history
        reply = await self.client.xread({key: after}, count=count, block=block_ms)
        items = [item for _, batch in reply for item in batch] if reply else []
        # Samples with candidates take a millisecond each; whoever serves people beside this has to come in between.
        return await asyncio.to_thread(lambda: [_entry(*item) for item in items])

    @available
    async def history_state(self) -> HistoryState:
        """How much there is."""
        held = int(await self.client.get(self.keys.history_bytes) or 0)
        try:
            info = await self.client.xinfo_stream(self.keys.history)
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
            return HistoryState(0, 0, "0-0")
        newest = info["last-generated-id"]
        return HistoryState(int(info["length"]), held, newest.decode() if isinstance(newest, bytes) else str(newest))


def _entry(raw_id: bytes, fields: dict[bytes, bytes]) -> HistoryEntry:
    entry_id = raw_id.decode()
    kind, turn_id, tenant = (
        fields.get(name, b"").decode(errors="replace") for name in (b"kind", b"turn_id", b"tenant")
    )
    record_data = fields.get(b"record", b"")
    try:
        message = decode_fields(fields, CARRIED[HistoryKind(kind)])
        record = decode_payload(record_data, TurnRecord) if record_data else None
    except (MessageError, ValueError) as error:
        return HistoryEntry(entry_id, kind, turn_id, tenant, None, problem=str(error))
    return HistoryEntry(
        entry_id, kind, turn_id, tenant or "default", message, record, data=fields[b"data"], record_data=record_data
    )
