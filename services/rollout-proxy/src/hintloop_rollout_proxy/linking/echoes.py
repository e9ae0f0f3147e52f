"""Finds the newest echoed answer in a transcript: by look-ups for every place, then by likeness. Keeps no state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hintloop_rollout_proxy.linking.events import Block, Kind, Reading
from hintloop_rollout_proxy.linking.identity import Identity
from hintloop_rollout_proxy.linking.index import Index, echo_keys, openings_in, pair_keys
from hintloop_rollout_proxy.linking.likeness import Likeness, is_enough, likeness
from hintloop_rollout_proxy.linking.nodes import Node, Scope
from hintloop_rollout_proxy.linking.normal_form import id_like_words, words_of
from hintloop_rollout_proxy.linking.sequences import begins_with, step_keys

#: Newest places at which rendered, wrapped and cut answers are looked for too.
NUM_CLOSE_LOOKS = 3
#: Characters of one text in which they are looked for.
CLOSE_LOOK_LENGTH = 50_000

Alive = Callable[[Node], bool]


@dataclass(frozen=True, slots=True)
class Echo:
    """``node``'s answer stands at ``block``. ``position``: what follows it begins after this item (or byte)."""

    node: Node
    position: int
    start: int
    end: int
    exact: bool
    sure: bool
    """By id, or word by word after the same request."""
    share: float
    frame: int


def find_echo(index: Index, newcomer: Node, reading: Reading, alive: Alive) -> Echo | None:
    """The newest answer that ``newcomer``'s request, as ``reading``, echoes; or ``None``."""
    scope, identity = newcomer.scope, newcomer.identity
    if reading.sequence is not None:
        return _find_sequence(index, scope, reading.sequence, identity, alive)
    looks = 0
    for block in reversed(reading.blocks):
        found = _choose(
            iter(index.at(scope, "request", reading.prefixes[block.start])), reading, block, newcomer, alive
        )
        if found is None or not found.sure or found.frame < 2 or found.node.identity.bars(identity):
            found = _choose(_candidates(index, scope, reading, block), reading, block, newcomer, alive)
        if found is None and looks < NUM_CLOSE_LOOKS:
            looks += 1
            closer = _close_candidates(index, scope, reading, block)
            found = _choose(closer, reading, block, newcomer, alive)
        if found is not None:
            return found
    return None


def _candidates(index: Index, scope: Scope, reading: Reading, block: Block) -> Iterator[Node]:
    """Answers of which an id or a part stands in the block; those to the words before it first."""
    parts = [event.text for event in reading.events[block.start : block.end] if event.text]
    for key in pair_keys(reading.hashes[: block.start], [*parts, block.text]):
        yield from index.at(scope, "pair", key)
    end = block.end
    while end < len(reading.events) and reading.events[end].kind is Kind.RESULT:
        end += 1
    for kind, value in echo_keys(reading.events[block.start : end], block.text):
        yield from index.at(scope, kind, value)


def _close_candidates(index: Index, scope: Scope, reading: Reading, block: Block) -> Iterator[Node]:
    """Answers to this very request; answers whose ids or first words stand in the text."""
    yield from index.at(scope, "request", reading.prefixes[block.start])
    text = block.text[:CLOSE_LOOK_LENGTH]
    if text and index.has(scope, "call_id"):
        for word in id_like_words(text):
            yield from index.at(scope, "call_id", word)
    yield from index.quoted(scope, "answer", openings_in(words_of(text)))


def _choose(candidates: Iterator[Node], reading: Reading, block: Block, newcomer: Node, alive: Alive) -> Echo | None:
    identity = newcomer.identity
    best: tuple[Node, Likeness] | None = None
    best_rank: tuple[object, ...] = ()
    seen: set[str] = set()
    for node in candidates:
        if node.turn_id in seen or not alive(node):
            continue
        seen.add(node.turn_id)
        if node.family != newcomer.family and (node.identity.line is None or node.identity.line != identity.line):
            continue
        found = likeness(node, reading, block, identity)
        if found is None or not is_enough(found, node, identity, blind=newcomer.blind):
            continue
        # Of equals none can be told from the other: a whole one, then one that is free.
        rank = (*found.rank, node.whole, node.free, _turn_among_equals(node, identity))
        if best is None or rank > best_rank:
            best, best_rank = (node, found), rank
    if best is None:
        return None
    node, found = best
    last = max(event.item for event in reading.events[block.start : block.end])
    sure = found.ids == 2 or (found.exact and found.parts >= 0.5)
    return Echo(node, last, block.start, block.end, found.exact, sure, found.share, found.frame)


def _turn_among_equals(node: Node, identity: Identity) -> int:
    """Rises with the preference among equal answers: agents that began alike go on in the order in which they began;
    one that asks the same again in its session goes on from what came of it."""
    same_line = identity.line is not None and identity.line == node.identity.line
    return node.number if same_line or not node.free else -node.number


def _find_sequence(index: Index, scope: Scope, sequence: bytes, identity: Identity, alive: Alive) -> Echo | None:
    """The longest earlier prompt with its answer at the beginning of this one."""
    if not index.has(scope, "sequence"):
        return None
    for key in step_keys(sequence):
        nodes = [node for node in index.at(scope, "sequence", key) if alive(node)]
        found = [
            (end.length, not node.identity.bars(identity), node.free, _turn_among_equals(node, identity), node)
            for node in nodes
            for end in node.sequence_ends
            if end.key == key and begins_with(sequence, end) and not node.identity.is_other_agent(identity)
        ]
        if found:
            length, _, _, _, node = max(found, key=lambda item: item[:4])
            return Echo(node, length, 0, 1, exact=True, sure=True, share=1.0, frame=2)
    return None
