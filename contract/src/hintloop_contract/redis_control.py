"""Requests of operators to the trainer, their outcomes, and the pause, on Redis. Owns atomicity of these alone."""

from __future__ import annotations

from typing import Any

import msgspec

from hintloop_contract.control import ControlOutcome, ControlRequest, ControlState, Pause
from hintloop_contract.redis_connection import available
from hintloop_contract.streams import Keys

#: How long an outcome can be asked for.
OUTCOME_TTL_S = 86_400

#: Stands for a request that somebody else wrote, or another version: no trainer knows this command, and it is refused.
UNREADABLE = ControlRequest(command="unreadable")

#: KEYS requests, outcome; ARGV id, outcome, ttl_s. 1 when the request is still there.
ACCEPT = """
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
return 1
"""

#: KEYS requests, outcome; ARGV id. 1 when nobody had begun with it.
WITHDRAW = """
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
return redis.call('XDEL', KEYS[1], ARGV[1])
"""

#: KEYS requests, outcome, paused; ARGV id, outcome, ttl_s, pause ('' = not paused)
SETTLE = """
redis.call('XDEL', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
if ARGV[4] == '' then redis.call('DEL', KEYS[3]) else redis.call('SET', KEYS[3], ARGV[4]) end
return 1
"""


class RedisControl:
    """The part of `Broker` between operators and the trainer."""

    client: Any
    keys: Keys

    @available
    async def ask_control(self, request: ControlRequest) -> str:
        """Put a request to the trainer; its id."""
        entry_id: bytes = await self.client.xadd(self.keys.control, {"data": msgspec.msgpack.encode(request)})
        return entry_id.decode()

    @available
    async def next_control(self) -> tuple[str, ControlRequest] | None:
        """The oldest request that is not settled, with its id; one that cannot be read is :data:`UNREADABLE`."""
        for entry_id, fields in await self.client.xrange(self.keys.control, count=1):
            try:
                request = msgspec.msgpack.decode(fields.get(b"data", b""), type=ControlRequest)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                request = UNREADABLE
            return entry_id.decode(), request
        return None

    @available
    async def accept_control(self, request_id: str, detail: str = "") -> bool:
        """Say that it is being carried out; false when it was withdrawn."""
        outcome = msgspec.msgpack.encode(ControlOutcome(state=ControlState.ACCEPTED, detail=detail))
        keys = [self.keys.control, self.keys.control_outcome(request_id)]
        return bool(await self.client.eval(ACCEPT, 2, *keys, request_id, outcome, OUTCOME_TTL_S))

    @available
    async def withdraw_control(self, request_id: str) -> bool:
        """Take a request back; false when the trainer has begun with it."""
        keys = [self.keys.control, self.keys.control_outcome(request_id)]
        return bool(await self.client.eval(WITHDRAW, 2, *keys, request_id))

    @available
    async def settle_control(self, request_id: str, outcome: ControlOutcome, *, pause: Pause | None) -> None:
        """End a request, and pause training or not, in one step."""
        keys = [self.keys.control, self.keys.control_outcome(request_id), self.keys.paused]
        paused = b"" if pause is None else msgspec.msgpack.encode(pause)
        packed = msgspec.msgpack.encode(outcome)
        await self.client.eval(SETTLE, 3, *keys, request_id, packed, OUTCOME_TTL_S, paused)

    @available
    async def control_outcome(self, request_id: str) -> ControlOutcome | None:
        """What became of a request; ``None`` while the trainer has not seen it."""
        value = await self.client.get(self.keys.control_outcome(request_id))
        return None if value is None else msgspec.msgpack.decode(value, type=ControlOutcome)

    @available
    async def paused(self) -> Pause | None:
        """Why training stands still, or ``None`` when it does not."""
        value = await self.client.get(self.keys.paused)
        return None if value is None else msgspec.msgpack.decode(value, type=Pause)
