"""What the linker remembers of one captured request, and where it is found again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hintloop_rollout_proxy.linking.transcript import Said, Transcript

Scope = tuple[str, ...]
"""Requests are only ever compared within a scope: tenant, credential, API, and session id or frame."""


@dataclass(eq=False, slots=True)
class Session:
    """A line of turns. ``num_turns`` counts requests that are no retries."""

    session_id: str
    num_turns: int = 0


@dataclass(eq=False, slots=True)
class Continuation:
    """A request that carries a turn's next state."""

    node: Node
    next_state: bytes
    certain: bool
    """The answer was echoed, and system texts and tools are the parent's."""


@dataclass(eq=False, slots=True)
class Node:
    """One captured request. ``answered``: an answer came (whole, or cut with something delivered)."""

    turn_id: str
    scope: Scope
    digest: bytes
    frame: bytes
    num_units: int
    said: Said
    whole: bool
    start_ms: int
    end_ms: int
    deadline_ms: int
    session: Session
    turn_index: int
    parent: Node | None = None
    next: Continuation | None = None
    settle_at_ms: int | None = None
    settled: bool = False
    """Released or dropped: it is trained at most once."""
    replaced: bool = False
    """A later attempt took its place."""

    @property
    def answered(self) -> bool:
        """Whether the client got something of an answer."""
        return self.whole or not self.said.empty

    @property
    def free(self) -> bool:
        """Whether no answered request continues it. A failed one may be replaced by its next attempt."""
        return self.next is None or not self.next.node.answered

    def gives_way_to(self, certain: bool) -> bool:
        """Whether the turn may still get its next state from a request that echoes it (``certain``) or does not."""
        return self.free or (certain and not self.settled and self.next is not None and not self.next.certain)


class NodeIndex:
    """Nodes by id and, within their scope, by the digest of their request's units."""

    def __init__(self) -> None:
        """Begin empty."""
        self._by_id: dict[str, Node] = {}
        self._by_digest: dict[tuple[Scope, bytes], list[Node]] = {}

    def add(self, node: Node) -> None:
        """Remember a node."""
        self._by_id[node.turn_id] = node
        self._by_digest.setdefault((node.scope, node.digest), []).append(node)

    def remove(self, node: Node) -> None:
        """Forget a node."""
        self._by_id.pop(node.turn_id, None)
        key = (node.scope, node.digest)
        nodes = self._by_digest.get(key)
        if nodes is not None:
            nodes.remove(node)
            if not nodes:
                del self._by_digest[key]

    def get(self, turn_id: str) -> Node | None:
        """The node of a turn."""
        return self._by_id.get(turn_id)

    def at(self, scope: Scope, digest: bytes) -> list[Node]:
        """Nodes whose request consists of exactly these units, oldest first."""
        return self._by_digest.get((scope, digest), [])

    def prefixes_of(self, scope: Scope, transcript: Transcript, start: int) -> Iterator[tuple[int, Node]]:
        """Nodes whose request is the first ``i`` units of ``transcript``, longest first from ``i = start``."""
        for length in range(start, -1, -1):
            for node in self.at(scope, transcript.prefixes[length]):
                yield length, node

    def __iter__(self) -> Iterator[Node]:
        """All nodes, oldest first."""
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._by_id)
