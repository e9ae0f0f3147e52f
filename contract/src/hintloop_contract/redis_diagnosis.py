"""What a diagnosis reads of Redis beside the streams, and the alarms that it writes. Owns their atomicity alone."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from hintloop_contract.codec import decode_fields
from hintloop_contract.diagnosis.alarms import MOST_PAST, Alarm, AlarmState
from hintloop_contract.diagnosis.figures import RedisRoom
from hintloop_contract.errors import MessageError
from hintloop_contract.messages import Capture, Drop
from hintloop_contract.redis_connection import available
from hintloop_contract.streams import CAPTURES, DROPS, Keys

#: KEYS lease, alarms, past; ARGV owner, lease_ms, state, most_past, ended...
#: 0 when another holds the lease. What stands is forgotten when nobody looks any more: an old alarm is no alarm.
SET_ALARMS = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[2] * 2)
for i = 5, #ARGV do redis.call('LPUSH', KEYS[3], ARGV[i]) end
redis.call('LTRIM', KEYS[3], 0, ARGV[4] - 1)
return 1
"""


class RedisDiagnosis:
    """The part of the broker for diagnosis."""

    client: Any
    keys: Keys

    @available
    async def set_alarms(
        self, owner: str, looked_ms: int, active: Sequence[Alarm], ended: Sequence[Alarm], *, lease_ms: int
    ) -> bool:
        """Say what stands and what ended; false when another than ``owner`` says so now (for ``lease_ms``)."""
        state = msgspec.msgpack.encode(AlarmState(looked_ms=looked_ms, active=tuple(active)))
        keys = [self.keys.of("alarms:lease"), self.keys.of("alarms"), self.keys.of("alarms:past")]
        past = [msgspec.msgpack.encode(alarm) for alarm in ended]
        return bool(await self.client.eval(SET_ALARMS, 3, *keys, owner, lease_ms, state, MOST_PAST, *past))

    @available
    async def alarms(self) -> AlarmState:
        """What stands and what ended, newest first."""
        found = await self.client.get(self.keys.of("alarms"))
        past = await self.client.lrange(self.keys.of("alarms:past"), 0, MOST_PAST - 1)
        state = AlarmState() if found is None else msgspec.msgpack.decode(found, type=AlarmState)
        return msgspec.structs.replace(state, past=tuple(msgspec.msgpack.decode(item, type=Alarm) for item in past))

    @available
    async def redis_room(self) -> RedisRoom:
        """How much memory Redis uses, and may use."""
        info = await self.client.info("memory")
        # A cluster may answer by node; a policy's keys are all on one.
        nodes = [info] if "used_memory" in info else [node for node in info.values() if isinstance(node, dict)]
        rooms = [RedisRoom(int(node.get("used_memory", 0)), int(node.get("maxmemory", 0))) for node in nodes]
        return max(rooms, key=lambda room: room.used / room.most if room.most else 0.0, default=RedisRoom())

    @available
    async def waiting_captures(self, count: int) -> list[Capture]:
        """Up to ``count`` of the newest captures whose turn is not decided yet, newest first; they stay there."""
        captures = []
        for _, fields in await self.client.xrevrange(self.keys.stream(CAPTURES), count=count):
            with contextlib.suppress(MessageError):
                captures.append(decode_fields(fields, Capture))
        return captures

    @available
    async def newest_drops(self, count: int) -> list[Drop]:
        """Up to ``count`` of the newest drops, newest first; those that cannot be read are left out."""
        drops = []
        for _, fields in await self.client.xrevrange(self.keys.stream(DROPS), count=count):
            with contextlib.suppress(MessageError):
                drops.append(decode_fields(fields, Drop))
        return drops
