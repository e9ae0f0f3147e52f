"""Messages that failed repeatedly: looking at them, sending them again, forgetting them. Owns the stream `dead`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hintloop_contract.codec import FIELDS, PackedMessage, decode_fields, field_values
from hintloop_contract.errors import MessageError
from hintloop_contract.messages import DeadLetter, DropReason
from hintloop_contract.redis_connection import available
from hintloop_contract.streams import CAPTURES, DEAD, STREAMS, Keys

#: KEYS dead, target, drop_counts, record; ARGV dead_id, counted_as, needs_record, field...
#: 1: sent again, its drop is taken back; 0: no such entry; -1: the turn's record is gone.
REQUEUE = """
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return 0 end
if ARGV[3] == '1' then
  if redis.call('EXISTS', KEYS[4]) == 0 then return -1 end
  redis.call('PERSIST', KEYS[4])
end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 4))
redis.call('XDEL', KEYS[1], ARGV[1])
redis.call('HINCRBY', KEYS[3], ARGV[2], -1)
return 1
"""


@dataclass(frozen=True, slots=True)
class DeadEntry:
    """One message that was set aside. ``died_ms``: Redis time, milliseconds."""

    entry_id: str
    letter: DeadLetter
    tenant: str

    @property
    def died_ms(self) -> int:
        """When it was set aside."""
        return int(self.entry_id.partition("-")[0])


class RedisDead:
    """The part of the broker for operators' `hintloop dead`."""

    client: Any
    keys: Keys
    policy: str

    @available
    async def dead_letters(self, count: int, after: str = "") -> list[DeadEntry]:
        """Up to ``count`` messages that were set aside, oldest first, after entry id ``after``.

        Raises:
            MessageError: an entry cannot be read.
            DependencyError: Redis is away.
        """
        start = f"({after}" if after else "-"
        found = await self.client.xrange(self.keys.stream(DEAD), min=start, count=count)
        return [_entry(entry_id, fields) for entry_id, fields in found]

    @available
    async def dead_letter(self, entry_id: str) -> DeadEntry | None:
        """One of them, or ``None``."""
        for found, fields in await self.client.xrange(self.keys.stream(DEAD), min=entry_id, max=entry_id):
            return _entry(found, fields)
        return None

    @available
    async def requeue_dead(self, entry: DeadEntry) -> bool:
        """Send a message again to the stream in which it failed; its drop is taken back. False: it is gone.

        Raises:
            MessageError: what the message needs is no longer kept, or its stream is unknown.
        """
        letter = entry.letter
        target = next((stream for stream in STREAMS if stream.name == letter.stream), None)
        if target is None or target.group is None:
            raise MessageError(f"dead message {entry.entry_id} is of stream {letter.stream!r}, which nobody reads")
        keys = [
            self.keys.stream(DEAD),
            self.keys.stream(target),
            self.keys.drop_counts,
            self.keys.turn(letter.turn_id),
        ]
        values = field_values(PackedMessage(letter.turn_id, letter.message, entry.tenant), self.policy)
        fields = [part for name, value in zip(FIELDS, values, strict=True) for part in (name.encode(), value)]
        counted_as = f"{letter.stage or target.group}:{DropReason.DEAD}"
        needs_record = int(target is not CAPTURES)
        args = [entry.entry_id, counted_as, needs_record, *fields]
        # One key prefix, one slot: a script per call is fine for what an operator does by hand.
        done = int(await self.client.eval(REQUEUE, len(keys), *keys, *args))
        if done < 0:
            raise MessageError(
                f"dead message {entry.entry_id} (turn {letter.turn_id}) cannot be sent again: its prompt and answer "
                "are no longer kept (redis.turn_retention_s after it died); purge it"
            )
        return bool(done)

    @available
    async def purge_dead(self, entry_ids: list[str]) -> int:
        """Forget messages; how many there were."""
        return int(await self.client.xdel(self.keys.stream(DEAD), *entry_ids)) if entry_ids else 0


def _entry(entry_id: bytes, fields: dict[bytes, bytes]) -> DeadEntry:
    return DeadEntry(entry_id.decode(), decode_fields(fields, DeadLetter), fields.get(b"tenant", b"default").decode())
