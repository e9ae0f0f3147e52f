"""Where the Redis to talk to is when it can move: the master of a Sentinel's service, the owner of a Cluster's slot.

Every key of a policy is in one hash slot, so one node holds them all, on a Cluster as behind Sentinels. A client of
either therefore is an ordinary one whose connections ask for the place anew each time they are made. Owns addresses
and how they are looked up; no key, no time limit of a call.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Protocol

from redis.asyncio.connection import Connection, SSLConnection
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from hintloop_contract.redis_url import Address, MovableUrl
from hintloop_contract.streams import Keys

#: Longest wait for one Sentinel or node that is asked where to go.
ASK_S = 2.0
# A node that answers so is not (or no longer) the one that holds the keys.
_ELSEWHERE = re.compile(r"(^|[\s:-])(READONLY|MOVED|ASK|MASTERDOWN|CLUSTERDOWN)\b")


class Place(Protocol):
    """Where the node is that holds the policy's keys, and that takes writes."""

    async def find(self) -> Address:
        """Look it up.

        Raises:
            redis.exceptions.ConnectionError: nobody who could say so answers, or there is none at the moment.
        """
        ...


class SentinelMaster:
    """The master of a service, as the Sentinels know it."""

    def __init__(self, sentinels: Sequence[Address], service: str, **options: Any) -> None:
        """``options`` are those of a connection to a Sentinel (``password``, TLS)."""
        self._sentinels = list(sentinels)
        self._service = service
        self._options = options

    async def find(self) -> Address:
        """The master's address."""
        said: list[str] = []
        for sentinel in list(self._sentinels):
            try:
                found = await _ask(sentinel, self._options, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            except (RedisError, OSError, TimeoutError) as error:
                said.append(_said(sentinel, error))
                continue
            if found is None:
                said.append(f"{sentinel[0]}:{sentinel[1]} knows no service {self._service!r}")
                continue
            # Who answered is asked first the next time.
            self._sentinels.remove(sentinel)
            self._sentinels.insert(0, sentinel)
            return found[0].decode(), int(found[1])
        raise RedisConnectionError(f"no Sentinel could say where {self._service!r} is: {'; '.join(said)}")


class SlotOwner:
    """The master that owns a policy's hash slot, as the Cluster's nodes know it."""

    def __init__(self, nodes: Sequence[Address], policy: str, **options: Any) -> None:
        """``options`` are those of a connection to a node (``username``, ``password``, TLS)."""
        self._given = list(nodes)
        self._nodes = list(nodes)
        self._slot = key_slot(Keys(policy).of("").encode())
        self._options = options

    async def find(self) -> Address:
        """The owner's address. Nodes that were heard of are asked, too: those that were given may be gone by then."""
        said: list[str] = []
        for node in dict.fromkeys([*self._nodes, *self._given]):
            try:
                ranges = await _ask(node, self._options, "CLUSTER", "SLOTS")
            except (RedisError, OSError, TimeoutError) as error:
                said.append(_said(node, error))
                continue
            owner = self._owner(ranges, node)
            if owner is None:
                said.append(f"{node[0]}:{node[1]} knows no owner of slot {self._slot}")
                continue
            return owner
        raise RedisConnectionError(f"no node could say who owns slot {self._slot}: {'; '.join(said)}")

    def _owner(self, ranges: Sequence[Any], asked: Address) -> Address | None:
        """Remember every node of the answer, those not just asked first: the one asked may be cut off from them."""
        heard = [_node(entry, asked) for _, _, *entries in ranges for entry in entries]
        self._nodes = [*(node for node in dict.fromkeys(heard) if node != asked), asked]
        for first, last, master, *_ in ranges:
            if first <= self._slot <= last:
                return _node(master, asked)
        return None


def _node(entry: Sequence[Any], asked: Address) -> Address:
    host = entry[0].decode() if entry[0] else ""
    # A node that does not know its own address yet leaves it out.
    return (host or asked[0]), int(entry[1])


def _said(address: Address, error: BaseException) -> str:
    return f"{address[0]}:{address[1]} ({type(error).__name__}: {error})"


async def _ask(address: Address, options: dict[str, Any], *command: str) -> Any:
    """One command on a connection of its own; the reply."""
    kind = SSLConnection if options.get("tls") else Connection
    plain = {name: value for name, value in options.items() if name != "tls"}
    connection: Any = kind(host=address[0], port=address[1], protocol=2, socket_connect_timeout=ASK_S, **plain)
    try:
        async with asyncio.timeout(ASK_S):
            await connection.connect()
            await connection.send_command(*command)
            return await connection.read_response()
    finally:
        await connection.disconnect(nowait=True)


class _Moving:
    """What a connection adds that looks its place up: it is made where the keys are, and left when they have moved."""

    def __init__(self, *, place: Place, **options: Any) -> None:
        super().__init__(**options)
        self._place = place

    async def _connect(self: Any) -> None:
        self.host, self.port = await self._place.find()
        await super()._connect()  # type: ignore[misc]  # of the connection class beside this one

    async def read_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().read_response(*args, **kwargs)  # type: ignore[misc]
        except ResponseError as error:
            if not _ELSEWHERE.search(str(error)):
                raise
            await self.disconnect(nowait=True)
            raise RedisConnectionError(f"{self.host}:{self.port} does not hold the keys now: {error}") from error


class MovingConnection(_Moving, Connection):
    """A connection to wherever the keys are."""


class MovingSSLConnection(_Moving, SSLConnection):
    """The same by TLS."""


def place_of(url: MovableUrl, options: dict[str, Any], policy: str, *, sentinel_password: str = "") -> Place:
    """Who is asked for the place that ``url`` names; ``options`` are those of a connection to Redis itself."""
    asking: dict[str, Any] = {name: value for name, value in options.items() if name.startswith("ssl_")}
    asking["tls"] = url.tls
    if url.kind == "cluster":
        asking |= {name: options[name] for name in ("username", "password") if name in options}
        return SlotOwner(url.hosts, policy, **asking)
    if sentinel_password:
        asking["password"] = sentinel_password
    return SentinelMaster(url.hosts, url.service, **asking)
