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

    def gone(self, node: Node) -> None:
        """Nothing followed ``node`` in time."""
        self._gone[node.scope, node.digest] = node.end_ms
        if len(self._gone) > self._most:
            del self._gone[next(iter(self._gone))]

    def gap_ms(self, node: Node, reading: Reading) -> int | None:
        """Milliseconds from the answer that ``node``'s request goes on from, if that timed out before; told once."""
        for length in range(len(reading.events) - 1, 0, -1):
            if reading.events[length].kind not in (Kind.ANSWER, Kind.CALL):
                continue
            end_ms = self._end_ms(node, reading.prefixes[length])
            if end_ms is not None and node.start_ms > end_ms:
                return node.start_ms - end_ms
        return None

    def _end_ms(self, node: Node, digest: bytes) -> int | None:
        end_ms = self._gone.pop((node.scope, digest), None)
        if end_ms is not None:
            return end_ms
        waiting = self._index.at(node.scope, "request", digest)
        return next((old.end_ms for old in waiting if old.next is None and old.deadline_ms < node.start_ms), None)
