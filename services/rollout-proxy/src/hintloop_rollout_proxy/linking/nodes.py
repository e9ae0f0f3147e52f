"""What the linker remembers of one captured request, and of the line of turns in which it stands."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from hintloop_rollout_proxy.linking.events import Event, Reply
from hintloop_rollout_proxy.linking.identity import Identity
from hintloop_rollout_proxy.linking.sequences import SequenceEnd

#: Most attempts that are looked back at.
MAX_ATTEMPTS = 32

Scope = tuple[str, str]
"""Tenant and credential: requests are only ever compared within a scope."""


@dataclass(eq=False, slots=True)
class Session:
    """A line of turns. ``nodes`` are its requests in order; ``num_turns`` counts those of the segment that are no
    retries."""

    session_id: str
    nodes: list[Node] = field(default_factory=list)
    num_turns: int = 0
    segment: int = 0


@dataclass(eq=False, slots=True)
class Continuation:
    """A request that carries a turn's next state. ``certain``: the answer was echoed, by the same agent.
    ``doubtful``: hindsight may still show that it was a side call."""

    node: Node
    next_state: bytes
    certain: bool
    doubtful: bool = False


@dataclass(eq=False, slots=True)
class Choices:
    """The captures of one request with several answers."""

    nodes: list[Node] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Node:
    """One captured request. ``reply`` is what the client got, also of a cut answer; ``whole``: all of it."""

    turn_id: str
    number: int
    scope: Scope
    family: str
    identity: Identity
    digest: bytes
    hashes: array[int]
    """Events of the whole conversation up to the answer, int64."""
    leads: array[int]
    """Leads of the user's texts at the end, int64."""
    tail: tuple[Event, ...]
    """The user's texts at the end of the request."""
    head_digest: bytes
    """Digest of what stands before ``tail``."""
    tools: frozenset[str]
    system: bytes
    reply: Reply
    whole: bool
    refused: bool
    start_ms: int
    end_ms: int
    deadline_ms: int
    session: Session
    sequence_ends: tuple[SequenceEnd, ...] = ()
    response_id: str | None = None
    blind: bool = False
    """What it goes on from may be settled and forgotten: an answer that merely reads alike is not taken for it."""
    small: bool = False
    """A single token was asked for: a probe, unless something continues it."""
    turn_index: int = 0
    segment: int = 0
    num_turns: int = 0
    """Turns of the segment up to this one."""
    parent: Node | None = None
    """The turn before, in whose session or from which a fork this stands."""
    continues: bool = False
    """Whether it carries the parent's next state."""
    after: str | None = None
    """The turn that it goes on from, where an earlier linker settled that."""
    retry_of: Node | None = None
    instead_of: Node | None = None
    """A failed attempt with fewer words, in whose place it stands."""
    forked: bool = False
    side: bool = False
    about: Node | None = None
    """Of a side call: the turn that it is about."""
    carried: bytes = b"[]"
    """Of a side call: what it shows to follow the answer of ``about``, its own instruction at the end."""
    next: Continuation | None = None
    settle_at_ms: int | None = None
    settled: bool = False
    """Released or dropped: it is trained at most once."""
    replaced: bool = False
    """A later attempt took its place."""
    choices: Choices | None = None
    core: str | None = None
    """What our own ids of its answer have in common."""
    keys: list[tuple[Scope, str, object]] = field(default_factory=list)
    """Under which it is found, for forgetting."""

    @property
    def attempts(self) -> Iterator[Node]:
        """This, and attempts that it repeats in other words; newest first."""
        yield self
        said, attempt = {self.digest}, self.retry_of
        for _ in range(MAX_ATTEMPTS):
            if attempt is None:
                return
            if attempt.digest not in said:
                said.add(attempt.digest)
                yield attempt
            attempt = attempt.retry_of

    @property
    def answered(self) -> bool:
        """Whether the client got something of an answer."""
        return self.whole or not self.reply.empty

    @property
    def free(self) -> bool:
        """Whether nothing that was answered continues it."""
        following = self.next
        return following is None or not (following.node.whole or following.node.next is not None)

    def same_tools(self, tools: frozenset[str]) -> bool:
        """Whether it offers the same tools, and any."""
        return bool(tools) and self.tools == tools

    def frame_score(self, tools: frozenset[str], system: bytes) -> int:
        """2: system texts and tools are the same; 1: only the tools, which there are; 0: neither."""
        if self.tools == tools and self.system == system:
            return 2
        return 1 if self.same_tools(tools) else 0
