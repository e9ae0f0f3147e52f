"""Remembers answers of the Responses API for requests that refer to them. Owns bounds and sharing; reads no answer.

Every proxy has a bounded part in its own memory; Redis shares it between replicas. What is lost here costs an agent
a request that it must send whole; it never costs a turn.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Protocol

import msgspec
import structlog
import zstandard
from hintloop_contract.errors import DependencyError

#: Kind under which answers are kept in Redis.
KIND = "response"
#: Most answers kept in Redis, and most bytes kept here.
MAX_SHARED = 100_000
MAX_LOCAL_BYTES = 8 * 1024 * 1024
#: An answer may be asked for at another replica just before it is stored.
PATIENCE_S = (0.02, 0.1)
#: Longest wait for Redis; an agent's request hangs on it.
LOOKUP_TIMEOUT_S = 2.0

log = structlog.get_logger()


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with the conversation before it.

    ``messages`` is a JSON array of chat messages up to and with the answer, without instructions; ``output`` one of
    its items. Only requests of the same ``tenant`` may refer to it.
    """

    tenant: str
    messages: bytes
    output: bytes


class SharedMemory(Protocol):
    """The part of the broker that shares what may be lost."""

    async def keep(self, kind: str, name: str, value: bytes, *, ttl_s: int, max_entries: int) -> None:
        """Keep a value."""
        ...

    async def kept(self, kind: str, name: str) -> bytes | None:
        """A kept value, or ``None``."""
        ...


class Unshared:
    """Shares nothing: an answer is known to the proxy that gave it, in its memory."""

    async def keep(self, kind: str, name: str, value: bytes, *, ttl_s: int, max_entries: int) -> None:
        """Keep nothing."""

    async def kept(self, kind: str, name: str) -> bytes | None:
        """Nothing."""
        return None


class ResponseStore:
    """Answers by the core of their ids."""

    def __init__(self, shared: SharedMemory, *, ttl_s: float, max_local_bytes: int = MAX_LOCAL_BYTES) -> None:
        """Keep an answer for ``ttl_s`` seconds; in this process at most ``max_local_bytes`` of them, packed."""
        self._shared = shared
        self._ttl_s = max(1, round(ttl_s))
        self._max_local_bytes = max_local_bytes
        self._local: OrderedDict[str, bytes] = OrderedDict()
        self._local_bytes = 0
        self._encode = zstandard.ZstdCompressor(level=1)
        self._decoder: msgspec.msgpack.Decoder[StoredResponse] = msgspec.msgpack.Decoder(StoredResponse)

    async def put(self, core: str, stored: StoredResponse) -> None:
        """Remember; here even when Redis is away."""
        packed = self._encode.compress(msgspec.msgpack.encode(stored))
        self._put_local(core, packed)
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                await self._shared.keep(KIND, core, packed, ttl_s=self._ttl_s, max_entries=MAX_SHARED)
        except (DependencyError, TimeoutError) as error:
            log.warning("answer is known to this proxy alone", error=str(error))

    async def get(self, core: str, tenant: str) -> StoredResponse | None:
        """The answer, or ``None`` when it is unknown, too old, or another tenant's.

        Raises:
            DependencyError: it is not known here, and Redis is away.
        """
        packed = self._get_local(core) or await self._get_shared(core)
        if packed is None:
            return None
        try:
            stored = self._decoder.decode(zstandard.ZstdDecompressor().decompress(packed))
        except (msgspec.MsgspecError, zstandard.ZstdError) as error:
            log.warning("a remembered answer cannot be read", error=type(error).__name__)
            return None
        return stored if stored.tenant == tenant else None

    def _get_local(self, core: str) -> bytes | None:
        packed = self._local.get(core)
        if packed is not None:
            self._local.move_to_end(core)
        return packed

    async def _get_shared(self, core: str) -> bytes | None:
        for wait_s in (*PATIENCE_S, None):
            try:
                async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                    packed = await self._shared.kept(KIND, core)
            except TimeoutError as error:
                raise DependencyError("redis", f"no answer within {LOOKUP_TIMEOUT_S:g} s") from error
            if packed is not None:
                self._put_local(core, packed)
                return packed
            if wait_s is not None:
                await asyncio.sleep(wait_s)
                if (found := self._get_local(core)) is not None:
                    return found
        return None

    def _put_local(self, core: str, packed: bytes) -> None:
        if len(packed) > self._max_local_bytes:
            return
        self._local_bytes += len(packed) - len(self._local.pop(core, b""))
        self._local[core] = packed
        while self._local_bytes > self._max_local_bytes:
            _, oldest = self._local.popitem(last=False)
            self._local_bytes -= len(oldest)


def pack_list(values: list[Any]) -> bytes:
    """A list as the JSON that is stored."""
    return msgspec.json.encode(values)


def unpack_list(data: bytes) -> list[Any]:
    """A stored list."""
    found: list[Any] = msgspec.json.decode(data, type=list[Any])
    return found
