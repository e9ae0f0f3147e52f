"""A broker without a server: the real broker and its scripts on an in-memory Redis. Needs the `testing` extra."""

from __future__ import annotations

import fakeredis

from hintloop_contract.diagnosis.figures import RedisRoom
from hintloop_contract.history import HistoryBounds
from hintloop_contract.redis_broker import RedisBroker


class MemoryBroker(RedisBroker):
    """`RedisBroker` on a private in-memory server."""

    def __init__(self, policy: str = "test", *, history: HistoryBounds | None = None) -> None:
        """Start empty, with every consumer group still to be made by ``ensure_groups``."""
        server = fakeredis.FakeServer(version=(7,))
        super().__init__(fakeredis.FakeAsyncRedis(server=server, protocol=2), policy, history=history)

    async def redis_room(self) -> RedisRoom:
        """No bound: this server knows no ``INFO``."""
        return RedisRoom()
