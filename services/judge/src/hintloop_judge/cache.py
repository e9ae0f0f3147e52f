"""Votes that were paid for, by the content of their question. Asking again, a replay or a turn of a dead replica
costs nothing. Owns the key and the form; where they are kept is the broker's business. Selection is no part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Vote

KIND = "votes"
#: Raised when the meaning of kept votes changes.
FORM = 1


class VoteCache:
    """Kept votes of one deployment, shared by all judges."""

    def __init__(self, broker: Broker, *, ttl_s: int, max_entries: int) -> None:
        """``ttl_s`` 0 keeps nothing."""
        self._broker = broker
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        self._log = structlog.get_logger()

    async def find(self, key: str) -> list[Vote] | None:
        """The votes of a question, or ``None``."""
        if not self._ttl_s:
            return None
        try:
            data = await self._broker.kept(KIND, key)
            return None if data is None else msgspec.msgpack.decode(data, type=list[Vote])
        except (DependencyError, msgspec.DecodeError) as error:  # as good as never kept
            self._log.warning("kept votes could not be read", error=str(error))
            return None

    async def keep(self, key: str, votes: Sequence[Vote]) -> None:
        """Keep the votes of a question."""
        if not self._ttl_s:
            return
        data = msgspec.msgpack.encode(list(votes))
        try:
            await self._broker.keep(KIND, key, data, ttl_s=self._ttl_s, max_entries=self._max_entries)
        except DependencyError as error:  # they are still used once
            self._log.warning("votes could not be kept", error=str(error))


def question_key(**content: Any) -> str:
    """Hash of everything that shapes the votes: prompt without its nonce, engine, model and settings."""
    canonical = json.dumps({"form": FORM, **content}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()
