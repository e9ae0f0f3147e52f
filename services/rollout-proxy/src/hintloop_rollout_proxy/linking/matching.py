"""Finds what a request continues. Owns the rules of likeness; keeps no state and settles nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hintloop_rollout_proxy.linking.nodes import Node, NodeIndex, Scope
from hintloop_rollout_proxy.linking.transcript import Kind, Transcript


@dataclass(frozen=True, slots=True)
class Match:
    """``node``'s answer is followed by what comes after unit ``last_unit``; ``echoed`` says that it is in there."""

    node: Node
    last_unit: int
    echoed: bool


def find_continued(
    index: NodeIndex, scope: Scope, transcript: Transcript, alive: Callable[[Node], bool]
) -> Match | None:
    """The turn whose next state the request carries: by the newest echoed answer, else by the longest prefix."""
    return _by_echo(index, scope, transcript, alive) or _by_prefix(index, scope, transcript, alive)


def _by_echo(index: NodeIndex, scope: Scope, transcript: Transcript, alive: Callable[[Node], bool]) -> Match | None:
    """The newest assistant unit that is a known answer to exactly the units before it, and is followed by some."""
    for position in range(len(transcript.units) - 2, -1, -1):
        unit = transcript.units[position]
        if unit.kind is not Kind.ASSISTANT:
            continue
        nodes = [
            node for node in index.at(scope, transcript.prefixes[position]) if node.said.echoed_by(unit) and alive(node)
        ]
        if nodes:
            # Under one session id two agents may have said the same; the one with this system text and tools is
            # meant. Of equals none can be told from the other: the first that is free.
            nodes = [node for node in nodes if node.frame == transcript.frame] or nodes
            node = next((node for node in nodes if node.free), nodes[0])
            return Match(node, position, echoed=True)
    return None


def _by_prefix(index: NodeIndex, scope: Scope, transcript: Transcript, alive: Callable[[Node], bool]) -> Match | None:
    """The longest whole request that this one extends without an answer, as after a reply to a malformed answer.

    Only whole answers count: after a cut one the agent may simply have begun anew.
    """
    for length, node in index.prefixes_of(scope, transcript, len(transcript.units) - 1):
        added = transcript.units[length:]
        if any(unit.kind is Kind.ASSISTANT for unit in added):
            return None
        if node.whole and node.num_units and node.free and node.frame == transcript.frame and alive(node):
            return Match(node, length - 1, echoed=False)
    return None


def find_attempt(index: NodeIndex, scope: Scope, transcript: Transcript, frame: bytes) -> Node | None:
    """The newest equal request that did not get a whole answer: this one is its retry."""
    for node in reversed(index.at(scope, transcript.digest)):
        if not (node.whole or node.replaced) and node.frame == frame and node.next is None:
            return node
    return None


def has_continued_twin(index: NodeIndex, node: Node) -> bool:
    """Whether an equal request was answered and continued in this one's place."""
    return any(
        twin is not node and twin.next is not None and twin.frame == node.frame and twin.said == node.said
        for twin in index.at(node.scope, node.digest)
    )
