"""What a deployment's Redis holds of its traffic: put aside, and put back byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis

#: Not traffic: weights and versions, what services say of themselves, who leads.
KEPT = ("weights", "version", "status:trainer", "status:engines", "control", "paused", "linker:", "trained_pending")


class TrafficKeys:
    """Everything of one policy that turns left behind: streams, records, counts, history."""

    def __init__(self, client: Redis, policy: str) -> None:
        self._client = client
        self._prefix = f"hl:{{{policy}}}:"

    def names(self) -> list[bytes]:
        """The keys that are there."""
        prefix = self._prefix.encode()
        found = self._client.scan_iter(match=f"{self._prefix.replace('{', '[{]').replace('}', '[}]')}*", count=1000)
        return [key for key in found if not key[len(prefix) :].decode().startswith(KEPT)]

    @contextmanager
    def put_aside(self, *, fresh: bool) -> Iterator[None]:
        """Put everything back at the end as it was; with ``fresh``, begin as if nothing had come in yet."""
        before = {key: (self._client.dump(key), max(0, self._client.pttl(key))) for key in self.names()}
        if fresh:
            self._remove(list(before))
        try:
            yield
        finally:
            pipe = self._client.pipeline(transaction=True)
            for key in self.names():
                if key not in before:
                    pipe.delete(key)
            for key, (value, ttl) in before.items():
                if value is not None:
                    pipe.restore(key, ttl, value, replace=True)
            pipe.execute()

    def _remove(self, keys: list[bytes]) -> None:
        if keys:
            self._client.delete(*keys)
