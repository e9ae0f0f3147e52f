"""How well a remembered answer fits a place in a transcript. Owns the order of evidence and what is enough."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from hintloop_rollout_proxy.linking.events import Block, Event, Kind, Reading, Reply
from hintloop_rollout_proxy.linking.identity import Identity
from hintloop_rollout_proxy.linking.nodes import Node
from hintloop_rollout_proxy.linking.normal_form import beginning_of, is_random, words_of

#: Share of an answer's words that a rendering of it must hold.
RENDERED_SHARE = 0.5
#: Share of a cut answer's words that its echo keeps.
CUT_SHARE = 0.6
#: Share of common events from which another session id means a fork and not somebody else.
FORK_SHARE = 0.6
#: Events that stand before the same answer by nobody else's chance.
FORK_EVENTS = 1


@dataclass(frozen=True, slots=True)
class Likeness:
    """Evidence that a node's answer is echoed by a block.

    ``line``: 1 the same session and branch, -1 other ones, 0 not known; ``ids``: 2 an id and the call itself, 1 an id;
    ``unmistakable``: an id that nobody else's answer has, and not one that an engine counts (``functions.bash:0``);
    ``parts``: share of the answer's text and calls that stand there; ``exact``: everything before is the node's
    request; ``share``: common events before, over those of the shorter side; ``close``: over those of the longer;
    ``frame``: see ``Node.frame_score``; ``same_text``: no less and no more than the answer's text; ``begins``: nothing
    stands before it; ``lesser``: asked with some of the tools, and with the same system text or nothing said after it.
    """

    line: int
    ids: int
    unmistakable: bool
    parts: float
    exact: bool
    share: float
    frame: int
    weak: bool
    close: float
    same_text: bool
    begins: bool
    lesser: bool

    @property
    def rank(self) -> tuple[int, int, bool, float, float, bool, int, bool, float]:
        """Ids first, then what was said before, then system text and tools."""
        return (
            self.line,
            self.ids,
            self.exact,
            round(self.share, 3),
            self.parts,
            self.same_text,
            self.frame,
            self.weak,
            round(self.close, 3),
        )


def likeness(node: Node, reading: Reading, block: Block, identity: Identity) -> Likeness | None:
    """How ``node``'s answer fits ``block``; ``None`` when it does not stand there at all."""
    ids, parts = _echoed(node.reply, reading, block, node)
    events = reading.events[block.start : block.end]
    if not parts and not ids:
        return None
    before, digest = reading.hashes[: block.start], reading.prefixes[block.start]
    share = max(common_share(attempt.hashes + attempt.leads, before) for attempt in node.attempts)
    return Likeness(
        line=_line(node.identity, identity),
        ids=ids,
        unmistakable=ids == 2 and (_has_core(node, events) or any(map(is_random, node.reply.call_ids))),
        parts=parts,
        exact=any(attempt.digest == digest for attempt in node.attempts),
        share=share,
        frame=node.frame_score(reading.tools, reading.system),
        weak=bool(node.identity.weak & identity.weak),
        close=share * min(len(node.hashes), len(before)) / max(len(node.hashes), len(before), 1),
        same_text=_has_same_text(node.reply, reading.events[block.start : block.end], block),
        begins=block.start == 0,
        lesser=reading.tools <= node.tools and (node.system == reading.system or block.end == len(reading.events)),
    )


def is_enough(likeness: Likeness, node: Node, identity: Identity, *, blind: bool) -> bool:
    """Whether a likeness makes a link. ``blind``: the answer that is meant may be forgotten, and another one that reads
    alike be found in its place; then only ids, or all the words before it, tell that this is it. Ids that an engine
    counts do not, unless something before it is the same."""
    if node.identity.is_other_agent(identity):
        return False
    if blind:
        told = likeness.unmistakable or (likeness.ids == 2 and (likeness.exact or likeness.share > 0))
        if not (told or likeness.line > 0 or (likeness.line == 0 and likeness.exact)):
            return False
    telling = node.reply.telling
    if likeness.line < 0:
        little = likeness.frame == 2 and not identity.stated
        much = likeness.exact and (telling or little or len(node.hashes) > FORK_EVENTS)
        return not identity.sub_agent and (much or (likeness.share >= FORK_SHARE and (telling or len(node.hashes) > 3)))
    if likeness.ids == 2 or likeness.line > 0:
        return True
    if likeness.ids:
        return likeness.exact or likeness.share > 0
    if likeness.frame:
        return likeness.exact or likeness.share > 0 or telling or (likeness.begins and likeness.same_text)
    # Nobody else says even little after a whole conversation that is the same, or with less of the same means.
    talked = likeness.exact and len(node.hashes) > len(node.tail)
    talked = talked or (likeness.lesser and likeness.share >= FORK_SHARE)
    return talked or (telling and (likeness.exact or likeness.share > 0))


def common_share(earlier: array[int], before: array[int]) -> float:
    """Common events over those of the shorter side."""
    if not earlier or not before:
        return 0.0
    first, second = set(earlier), set(before)
    return len(first & second) / min(len(first), len(second))


def _line(mine: Identity, other: Identity) -> int:
    if mine.line is not None and mine.line == other.line:
        return 1
    return -1 if mine.bars(other) else 0


def _echoed(reply: Reply, reading: Reading, block: Block, node: Node) -> tuple[int, float]:
    """How far ids and parts of an answer stand in a block."""
    events = reading.events[block.start : block.end]
    calls = {event.text for event in events if event.kind is Kind.CALL}
    same_calls = [call for call in reply.calls if call in calls]
    call_ids = _call_ids(reading, block)
    same_ids = any(call_id in call_ids for call_id in reply.call_ids)
    same_text = bool(reply.text) and _holds_text(node, events, block)
    num_parts = bool(reply.text) + len(reply.calls)
    parts = (same_text + len(same_calls)) / num_parts if num_parts else 0.0
    if _has_core(node, events):
        return 2, 1.0
    if same_ids:
        return (2 if same_calls else 1), max(parts, 0.25)
    if not parts and reply.calls and is_rendered(reply, block.text):
        return (2 if _shows_an_id(reply, block.text) else 0), 0.5
    return 0, parts


def _has_core(node: Node, events: tuple[Event, ...]) -> bool:
    return any(event.mark and event.mark == node.core for event in events)


def _call_ids(reading: Reading, block: Block) -> set[str]:
    """Ids of the block's calls, and of the results right after it."""
    found = {event.call_id for event in reading.events[block.start : block.end] if event.call_id}
    for event in reading.events[block.end :]:
        if event.kind is not Kind.RESULT:
            break
        found.add(event.call_id)
    return found


def _common_beginning(first: str, second: str) -> float:
    """Words that two texts begin with alike, over those of ``first``; 0 for fewer than three."""
    mine, other = words_of(first), words_of(second)
    common = 0
    while common < min(len(mine), len(other)) and mine[common] == other[common]:
        common += 1
    return common / len(mine) if common > 2 else 0.0


def _has_same_text(reply: Reply, events: tuple[Event, ...], block: Block) -> bool:
    return reply.text == block.text or any(event.text == reply.text for event in events if event.kind is Kind.ANSWER)


def _holds_text(node: Node, events: tuple[Event, ...], block: Block) -> bool:
    """Whether a block repeats the text: as it is, inside another text, or the beginning of it."""
    reply = node.reply
    if _has_same_text(reply, events, block):
        return True
    if len(reply.text) > 11 and reply.text in block.text:
        return True
    if len(block.text) > 11 and reply.text.startswith(block.text):
        return True
    # An agent may keep less of a cut answer than reached it, and add a marker.
    return not node.whole and _common_beginning(reply.text, block.text) >= CUT_SHARE


def is_rendered(reply: Reply, text: str) -> bool:
    """Whether a text tells of the answer's calls: their names, and most of their arguments."""
    if not text or not reply.names or not all(name and name in text for name in reply.names):
        return False
    words = {word for argument in reply.arguments for word in words_of(argument)}
    shown = words & set(words_of(text))
    return not words or len(shown) >= RENDERED_SHARE * len(words)


def _shows_an_id(reply: Reply, text: str) -> bool:
    # Ids are normalised; in the text they may hold dashes and underscores.
    bare = "".join(character for character in text if character.isalnum())
    return any(len(call_id) > 5 and call_id in bare for call_id in reply.call_ids)


def is_retold(reply: Reply, words: str) -> bool:
    """Whether ``words`` (a text's words, between spaces) hold an answer, or some passage of it."""
    passages = reply.passages
    return any((len(passage) > 12 or len(passages) == 1) and passage in words for passage in passages)


def is_quoted(text: str, words: str) -> bool:
    """Whether ``words`` (a text's words, between spaces) hold the beginning of ``text``."""
    begin = beginning_of(text)
    return len(begin) > 2 and begin in words
