"""Continuations that came after their session's timeout. They revive no turn; that they came says what to change."""

from __future__ import annotations

from hintloop_rollout_proxy.linking.events import Kind, Reading
from hintloop_rollout_proxy.linking.index import Index
from hintloop_rollout_proxy.linking.nodes import Node, Scope

#: Most turns remembered that nothing followed in time; the oldest are forgotten first.
MOST_GONE = 10_000


class LateContinuations:
    """Remembers turns that timed out, and recognises the request that goes on from one."""

    def __init__(self, index: Index, most: int = MOST_GONE) -> None:
        """Remember at most ``most`` turns besides those of ``index``, where a deadline may have passed as well."""
        self._index = index
        self._most = most
        self._gone: dict[tuple[Scope, bytes], int] = {}
        self._told: set[tuple[Scope, bytes]] = set()

    def gone(self, node: Node) -> None:
        """Nothing followed ``node`` in time."""
        key = (node.scope, node.digest)
        self._gone[key] = node.end_ms
        self._told.discard(key)
        if len(self._gone) > self._most:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self._told.discard(oldest)

    def gap_ms(self, node: Node, reading: Reading) -> tuple[int, bool] | None:
        """Milliseconds from the answer that ``node``'s request goes on from, if that timed out before, and whether this
        is the first request to show it."""
        for length in range(len(reading.events) - 1, 0, -1):
            if reading.events[length].kind not in (Kind.ANSWER, Kind.CALL):
                continue
            digest = reading.prefixes[length]
            known = self._index.at(node.scope, "request", digest)
            if any(old.next is not None or old.deadline_ms >= node.start_ms for old in known):
                return None
            key = (node.scope, digest)
            end_ms = known[0].end_ms if known else self._gone.get(key)
            if end_ms is not None and node.start_ms > end_ms:
                first = key not in self._told
                if not known:
                    self._told.add(key)
                return node.start_ms - end_ms, first
        return None
