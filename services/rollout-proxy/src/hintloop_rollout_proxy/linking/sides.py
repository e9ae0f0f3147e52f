"""Tells side calls (titles, summaries, compaction, probes) from turns of the main line. Moves nothing.

By tools, system text, place, what is quoted, and by what becomes of the answer. What is said here may be taken back:
a side call that is continued was a turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hintloop_rollout_proxy.linking.events import Event, Kind, Reading
from hintloop_rollout_proxy.linking.index import Index, openings_in
from hintloop_rollout_proxy.linking.likeness import common_share, is_quoted, is_retold
from hintloop_rollout_proxy.linking.nodes import Node
from hintloop_rollout_proxy.linking.normal_form import words_of

Alive = Callable[[Node], bool]

#: Words by which an instruction asks for a summary. They never decide alone.
_INSTRUCTION = re.compile(r"summar|compact|hand-?off|checkpoint|condens|recap|memor", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a request: all texts, in the order and in the two forms in which quotations are looked for."""

    text: str
    openings: set[tuple[str, str, str]]


def words_in(reading: Reading, *kinds: Kind) -> Words:
    """The words of the events of some kinds."""
    words = words_of(reading.texts(*kinds))
    return Words(f" {' '.join(words)} ", openings_in(words))


def is_aside(node: Node, reading: Reading, parent: Node) -> bool:
    """Whether a request that echoes ``parent`` asks about the conversation instead of going on with it.

    Without the tools that the parent has, ending in a user's text. One that ends in a tool's result is a hand-off.
    """
    return bool(parent.tools) and not node.tools and reading.last_kind is Kind.USER


def is_doubtful(node: Node, reading: Reading, parent: Node) -> bool:
    """Whether hindsight may show that a request which echoes ``parent`` is a side call."""
    if reading.last_kind is not Kind.USER:
        return False
    if node.tools < parent.tools:
        return True
    other_system = not node.tools and node.system != parent.system
    return other_system or asks_for_summary(node)


def was_detour(side: Node, reading: Reading, start: int, *, retold: bool = False) -> bool:
    """Whether ``side``, taken for a turn, only made a summary or a plan: its answer stands before ``start``, what it
    asked does not; and it was asked by other means than the turns around it, or what was before it is gone.

    ``retold``: the answer stands inside another's text, so that only what was asked last must be missing.
    """
    parent = side.parent
    if parent is None or not side.continues or not side.tail or side.reply.calls:
        return False
    if not parent.frame_score(reading.tools, reading.system):
        return False
    others = not side.frame_score(reading.tools, reading.system)
    head_stands = len(side.hashes) > len(side.tail) and side.head_digest in reading.prefixes[: start + 1]
    if head_stands and not others:
        # All that was before it is still there: nothing was summed up, only words of the agent's own fell away.
        return False
    for attempt in side.attempts:
        asked = attempt.tail[-1:] if others or retold else attempt.tail
        if _was_asked(asked, reading, start) or attempt.digest in reading.prefixes[: start + 1]:
            return False
    if others:
        return True
    if _stands_in(parent, reading):
        return False
    before = reading.hashes[:start]
    replaced = bool(before) and not common_share(side.hashes, before)
    return replaced or asks_for_summary(side)


def asks_for_summary(node: Node) -> bool:
    """Whether the words at a request's end speak of a summary. They never decide alone."""
    return any(_INSTRUCTION.search(event.text) for event in node.tail)


def was_kept(node: Node, reading: Reading, start: int) -> bool:
    """Whether what ``node`` asked stands among the first ``start`` events: then its answer is part of the line.

    Of a side call that is what it asked last; before it may stand words of the line.
    """
    asked = node.tail[-1:] if node.side else node.tail
    head = node.hashes[: len(node.hashes) - len(node.tail)]
    if node.side and head and not common_share(head, reading.hashes[:start]):
        # Of all that it was told nothing is left: its answer stands for that.
        return False
    return node.digest in reading.prefixes[: start + 1] or _was_asked(asked, reading, start)


def _was_asked(tail: tuple[Event, ...], reading: Reading, start: int) -> bool:
    """Whether any of these texts stands among the first ``start`` events, also inside another user's text."""
    hashes = set(reading.hashes[:start])
    if any(hash((event.kind, text)) in hashes for event in tail for text in (event.text, *event.leads)):
        return True
    told = " ".join(event.text for event in reading.events[:start] if event.kind is Kind.USER)
    words = f" {' '.join(words_of(told))} "
    return any(is_quoted(event.text, words) for event in tail if len(event.text) > 7)


def _stands_in(node: Node, reading: Reading) -> bool:
    hashes = set(reading.hashes)
    said = [hash((Kind.ANSWER, node.reply.text))] if node.reply.text else []
    return any(found in hashes for found in [*said, *(hash((Kind.CALL, call)) for call in node.reply.calls)])


def find_quoted(index: Index, node: Node, words: Words, alive: Alive, near: Alive) -> Node | None:
    """The newest turn that a request quotes as one who tells of a conversation: with what its user said and, when it
    cannot be told by its tools, with the answer. A task that only builds on another's answer is none."""
    by_user = [
        found
        for found in index.quoted(node.scope, "user", words.openings)
        if _is_other(found, node, near) and _quotes_user(found, words)
    ]
    by_answer = {
        found.session.session_id
        for found in index.quoted(node.scope, "answer", words.openings)
        if _is_other(found, node, alive) and is_quoted(found.reply.text, words.text)
    }
    told = [found for found in by_user if found.session.session_id in by_answer]
    for found in [*told, *by_user]:
        if found.tools and not node.tools and not _is_same_text(found, node):
            return found
        if found.session.session_id in by_answer and found.system != node.system and not found.tools:
            return found
    return None


def _is_other(found: Node, node: Node, alive: Alive) -> bool:
    return found is not node and not found.side and alive(found) and not found.identity.is_other_agent(node.identity)


def _quotes_user(found: Node, words: Words) -> bool:
    return any(is_quoted(text, words.text) for event in found.tail for text in event.quotable)


def _is_same_text(found: Node, node: Node) -> bool:
    """Whether both ask just the same: then nothing is told of a conversation, unless ids say that it is one."""
    same_session = found.identity.session is not None and found.identity.session == node.identity.session
    return not same_session and found.digest == node.digest


def find_in_session(index: Index, node: Node, quoted: Node | None, near: Alive) -> Node | None:
    """The newest turn with tools in the session that ids name, when the request has none; that which it quotes, when
    the session has several lines."""
    if node.tools or node.identity.session is None:
        return None
    if quoted is not None and quoted.identity.session == node.identity.session:
        return quoted
    for found in index.at(node.scope, "session", node.identity.session):
        if found.tools and _is_other(found, node, near):
            return found
    return None


def is_title_of(side: Node, side_words: str, main: Node, reading: Reading) -> bool:
    """Whether ``side``, an opening, tells of what ``main``, a later opening, begins with."""
    if (main.tools and side.tools) or side.frame_score(main.tools, main.system) == 2:
        return False
    same_session = side.identity.session is not None and side.identity.session == main.identity.session
    if same_session and main.tools:
        return True
    if side.reply.telling and is_retold(side.reply, words_in(reading, Kind.ANSWER).text):
        # A plan, made by other means and then put into the model's mouth.
        return True
    if not main.tools and side.system == main.system:
        return False
    told = (f" {' '.join(words_of(form))} " for event in main.tail for form in event.quotable)
    return any(2 < len(words) < len(side_words) and " " in words.strip() and words in side_words for words in told)


def find_summary(index: Index, node: Node, reading: Reading, alive: Alive) -> Node | None:
    """The side call whose answer stands in the request's texts, also one that was taken for a turn; of several the
    newest of those that have most in common with the request."""
    if not index.has(node.scope, "words:answer"):
        return None
    words = words_in(reading, Kind.USER, Kind.ANSWER)
    best: tuple[tuple[bool, float, int], Node] | None = None
    for what in ("answer", "passage"):
        for found in index.quoted(node.scope, what, words.openings):
            if found is node or not alive(found) or found.identity.bars(node.identity):
                continue
            if not found.reply.telling and not asks_for_summary(found):
                continue
            if is_retold(found.reply, words.text) and _made_summary(found, node, reading):
                about = found if found.about is None else found.about
                common = max(common_share(each.hashes, reading.hashes) for each in (found, about))
                rank = (_is_same_line(found, node), common, found.number)
                if best is None or rank > best[0]:
                    best = rank, found
    return None if best is None else best[1]


def _is_same_line(found: Node, node: Node) -> bool:
    return found.identity.line is not None and found.identity.line == node.identity.line


def _made_summary(found: Node, node: Node, reading: Reading) -> bool:
    if found.side:
        return True
    if not was_detour(found, reading, len(reading.events), retold=True):
        return False
    same_line = found.identity.line is not None and found.identity.line == node.identity.line
    return same_line or common_share(found.hashes, reading.hashes) > 0 or asks_for_summary(found)
