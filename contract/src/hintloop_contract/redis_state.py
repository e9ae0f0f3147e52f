"""What a policy keeps in Redis beside its streams: counts, versions, requests in flight, the lease, statuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from hintloop_contract import scripts
from hintloop_contract.broker import Funnel, WeightsState
from hintloop_contract.codec import decode_payload, encode_payload
from hintloop_contract.errors import MessageError
from hintloop_contract.messages import TurnNote, TurnRecord
from hintloop_contract.redis_connection import available, may_move
from hintloop_contract.redis_control import RedisControl
from hintloop_contract.redis_replicas import ConfirmedRedis
from hintloop_contract.streams import Keys

INFLIGHT_MAX_AGE_MS = 24 * 3600 * 1000
#: Most notes of turns that one script takes.
NOTES_AT_ONCE = 1000

log = structlog.get_logger()


class RedisState(RedisControl):
    """The part of `Broker` that reads and writes single values over a ``redis.asyncio`` client."""

    def __init__(self, client: Any, policy: str) -> None:
        """Use ``client`` for ``policy``."""
        self.client = client
        self.policy = policy
        self.keys = Keys(policy)
        self._lease = client.register_script(scripts.LEASE)
        self._note_turns = client.register_script(scripts.NOTE_TURNS)
        self._keep = client.register_script(scripts.KEEP)

    @available
    async def time_ms(self) -> int:
        """Redis time, milliseconds."""
        seconds, microseconds = await self.client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    @available
    async def get_turn(self, turn_id: str) -> TurnRecord | None:
        """The turn's record, or ``None`` when it was freed."""
        data = await self.client.get(self.keys.turn(turn_id))
        return None if data is None else decode_payload(data, TurnRecord)

    @available
    async def count(self, step: str, amount: int = 1) -> None:
        """Add to a funnel step."""
        await self.client.hincrby(self.keys.funnel, step, amount)

    @available
    async def funnel(self) -> Funnel:
        """Funnel counts."""
        steps = {k.decode(): int(v) for k, v in (await self.client.hgetall(self.keys.funnel)).items()}
        drops: dict[tuple[str, str], int] = {}
        for name, value in (await self.client.hgetall(self.keys.drop_counts)).items():
            stage, _, reason = name.decode().partition(":")
            drops[stage, reason] = int(value)
        return Funnel(steps, drops)

    @available
    async def set_trained_pending(self, amount: int) -> None:
        """Say how many samples are trained and not yet acknowledged."""
        await self.client.set(self.keys.trained_pending, amount)

    @available
    async def next_version(self) -> int:
        """A version number never used before."""
        return int(await self.client.incr(self.keys.version_counter))

    @available
    async def describe_version(self, version: int, fields: dict[str, str]) -> None:
        """Store ``step, run, parent, weights_hash`` of a version."""
        await self.client.hset(self.keys.version(version), mapping=fields)

    @available
    async def version_notes(self, version: int) -> dict[str, str]:
        """What :meth:`describe_version` stored; empty when nothing was."""
        found = await self.client.hgetall(self.keys.version(version))
        return {k.decode(): v.decode() for k, v in found.items()}

    @available
    async def weights(self) -> WeightsState:
        """Which version is released, and which is being published."""
        current, updating = await self.client.hmget(self.keys.weights, "current", "updating")
        return WeightsState(int(current) if current else None, int(updating) if updating else None)

    @available
    async def set_weights(self, state: WeightsState) -> None:
        """Record the released version and the one being published."""
        mapping = {"current": text_of(state.current), "updating": text_of(state.updating)}
        await self.client.hset(self.keys.weights, mapping=mapping)

    @available
    async def inflight_add(self, turn_id: str, start_ms: int) -> None:
        """A request is being answered."""
        await self._inflight_update({turn_id: start_ms}, ())

    @available
    async def inflight_remove(self, turn_id: str) -> None:
        """It is answered."""
        await self._inflight_update({}, (turn_id,))

    @available
    async def inflight_update(self, begun: Mapping[str, int], ended: Sequence[str]) -> None:
        """Requests being answered by their arrival in milliseconds, and such as are answered, in one round trip."""
        await self._inflight_update(begun, ended)

    async def _inflight_update(self, begun: Mapping[str, int], ended: Sequence[str]) -> None:
        pipe = self.client.pipeline(transaction=False)
        if begun:
            pipe.zadd(self.keys.inflight, begun)
            pipe.zremrangebyscore(self.keys.inflight, "-inf", min(begun.values()) - INFLIGHT_MAX_AGE_MS)
        if ended:
            pipe.zrem(self.keys.inflight, *ended)
        await pipe.execute()

    @available
    async def inflight_oldest(self, newer_than_ms: int) -> int | None:
        """Arrival of the oldest request still being answered that arrived after ``newer_than_ms``."""
        found = await self.client.zrangebyscore(
            self.keys.inflight, newer_than_ms, "+inf", start=0, num=1, withscores=True
        )
        return int(found[0][1]) if found else None

    @available
    async def acquire_lease(self, owner: str, lease_ms: int) -> int | None:
        """Become (or stay) the active linker: the fencing token, or ``None`` while another holds the lease."""
        token = int(await self._lease(keys=[self.keys.linker_lease, self.keys.fence], args=[owner, lease_ms]))
        return token or None

    @available
    async def note_turns(self, notes: Sequence[TurnNote], *, keep_ms: int, most: int, fence: int | None = None) -> bool:
        """Add notes in order, kept for ``keep_ms`` and ``most`` of them in all; false when the fence is old."""
        keys = [self.keys.turn_notes, self.keys.fence]
        token = text_of(fence)
        for first in range(0, len(notes), NOTES_AT_ONCE):
            portion = [encode_payload(note) for note in notes[first : first + NOTES_AT_ONCE]]
            if await self._note_turns(keys=keys, args=[token, keep_ms, most, *portion]) < 0:
                return False
        return True

    @available
    async def turn_notes(self, *, since_ms: int, most: int) -> list[TurnNote]:
        """The newest notes that were added since then (Redis time), oldest first."""
        found = await self.client.xrevrange(self.keys.turn_notes, min=max(0, since_ms), count=most)
        notes = []
        for _, fields in reversed(found):
            try:
                notes.append(decode_payload(fields.get(b"data", b""), TurnNote))
            except MessageError as error:
                # Nothing is lost by it but that its session begins anew.
                log.warning("a turn's note cannot be read", error=str(error))
        return notes

    @available
    async def set_status(self, service: str, fields: dict[str, str], *, afresh: bool = False) -> None:
        """Write what a service says about itself; ``afresh``: nothing that was said before stays."""
        pipe = self.client.pipeline(transaction=True)
        if afresh:
            pipe.delete(self.keys.status(service))
        pipe.hset(self.keys.status(service), mapping=fields)
        await pipe.execute()

    @available
    async def get_status(self, service: str) -> dict[str, str]:
        """Read what a service says about itself."""
        found = await self.client.hgetall(self.keys.status(service))
        return {k.decode(): v.decode() for k, v in found.items()}

    @available
    async def keep(self, kind: str, name: str, value: bytes, *, ttl_s: int, max_entries: int) -> None:
        """Keep a value that may be lost at any time; past ``max_entries`` of its kind the oldest go."""
        keys = [self.keys.kept(kind, name), self.keys.kept_index(kind)]
        await self._keep(keys=keys, args=[value, ttl_s, max_entries, self.keys.kept(kind, ""), name])

    @available
    async def kept(self, kind: str, name: str) -> bytes | None:
        """A kept value, or ``None``."""
        value = await self.client.get(self.keys.kept(kind, name))
        return None if value is None else bytes(value)

    @available
    async def durability_problems(self) -> list[str]:
        """What in Redis' own settings could lose messages, each with its fix; empty when nothing could."""
        problems = []
        policy = (await self.client.config_get("maxmemory-policy")).get("maxmemory-policy")
        if policy != "noeviction":
            problems.append(f"maxmemory-policy is {policy!r}: streams could be evicted; set it to noeviction")
        if (await self.client.config_get("appendonly")).get("appendonly") != "yes":
            problems.append("appendonly is off: a restart loses every stream; set appendonly yes")
        if may_move(self.client) and not isinstance(self.client, ConfirmedRedis):
            problems.append(
                "redis.wait_replicas is 0 and another node may take over: it forgets what it had not received by then; "
                "set redis.wait_replicas to 1 or more"
            )
        return problems

    @available
    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()


def text_of(value: int | None) -> str:
    """A version as Redis holds it; empty for none."""
    return "" if value is None else str(value)
