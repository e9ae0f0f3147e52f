"""What a request is, before anything is moved. Owns the order in which relations are tried."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hintloop_rollout_proxy.linking import sides
from hintloop_rollout_proxy.linking.attempts import Change, find_failed_before, find_repeated
from hintloop_rollout_proxy.linking.board import Board
from hintloop_rollout_proxy.linking.earlier import Place, Standing
from hintloop_rollout_proxy.linking.echoes import Alive, Echo, find_echo
from hintloop_rollout_proxy.linking.events import SPOKEN, Kind, Reading
from hintloop_rollout_proxy.linking.likeness import is_quoted
from hintloop_rollout_proxy.linking.nodes import Node
from hintloop_rollout_proxy.linking.normal_form import is_random


class Relation(Enum):
    """How a request stands to the one that a verdict names."""

    ROOT = "root"  # to none: it opens a session
    SUB_AGENT = "sub_agent"  # it opens one for a task that the other's answer gave out
    CHOICE = "choice"  # another answer to the same request
    RETRY = "retry"  # repeats it
    AFTER_FAILED = "after_failed"  # comes in its place, with more words
    CONTINUES = "continues"  # carries its next state
    RESUMES = "resumes"  # stands in some way to a turn that an earlier linker settled
    FOLLOWS = "follows"  # stands in its session, but shows nothing of its answer
    SUMMARISED = "summarised"  # goes on from it after a side call made a summary
    SIDE = "side"  # is about it


@dataclass(frozen=True, slots=True)
class Verdict:
    """``position``: the next state begins after this item; ``summary``: the side call that made the summary."""

    relation: Relation
    other: Node | None = None
    position: int = -1
    echo: Echo | None = None
    summary: Node | None = None
    place: Place | None = None


class Classifier:
    """Says what a newcomer is."""

    def __init__(self, board: Board, node: Node, reading: Reading, turn_type: str | None) -> None:
        """``node`` is not remembered yet."""
        self._index = board.index
        self._earlier = board.earlier
        self._node = node
        self._reading = reading
        self._alive: Alive = board.alive_for(node)
        self._near: Alive = board.near_to(node)
        self._may_be_side = turn_type != "main" and not node.identity.sub_agent
        self._echo: Echo | None = None

    def verdict(self) -> Verdict:
        """The first relation that holds."""
        node = self._node
        if node.side:
            self._echo = self._find_echo()
            return Verdict(Relation.SIDE, self._named_main(), echo=self._echo)
        if node.choices is not None and node.choices.nodes[0] is not node:
            return Verdict(Relation.CHOICE, node.choices.nodes[0])
        delta = self._delta()
        if delta is not None:
            return delta
        self._echo = self._find_echo()
        place = self._earlier.find(node, self._reading)
        if place is not None and place.known and place.standing is Standing.CONTINUES:
            return Verdict(Relation.RESUMES, place=place)
        return (
            self._attempt()
            or (None if place is None else self._resumes(place))
            or self._by_echo()
            or self._by_result()
            or self._extends()
            or self._sub_agent()
            or self._telling()
            or self._summarised()
            or self._stated()
            or Verdict(Relation.ROOT)
        )

    def _find_echo(self) -> Echo | None:
        return find_echo(self._index, self._node, self._reading, self._alive)

    def _named_main(self) -> Node | None:
        """The turn that is echoed, else the newest of the session that ids name."""
        if self._echo is not None:
            return self._echo.node
        identity = self._node.identity
        nodes = self._index.at(self._node.scope, "session", identity.session) if identity.session else []
        lines = [found for found in nodes if not found.side and self._alive(found)]
        return next((found for found in lines if not found.identity.bars(identity)), lines[0] if lines else None)

    def _delta(self) -> Verdict | None:
        """Only what is new was sent, after a response that is named."""
        if self._reading.previous_id is None:
            return None
        attempt = find_repeated(self._index, self._node)
        if attempt is not None:
            return Verdict(Relation.RETRY, attempt)
        for found in self._index.at((self._node.scope[0], ""), "response", self._reading.previous_id):
            if self._alive(found):
                return Verdict(Relation.CONTINUES, found)
        return None

    def _attempt(self) -> Verdict | None:
        attempt = find_repeated(self._index, self._node)
        if attempt is not None:
            return Verdict(Relation.RETRY, attempt, echo=self._echo)
        failed = find_failed_before(self._index, self._node, self._reading)
        if failed is None:
            return None
        relation = Relation.RETRY if failed[1] is Change.REWRITTEN else Relation.AFTER_FAILED
        return Verdict(relation, failed[0], echo=self._echo)

    def _resumes(self, place: Place) -> Verdict | None:
        """It repeats what an earlier linker settled; an answer that is found here must be as near to be preferred."""
        echo = self._echo
        resumes = Verdict(Relation.RESUMES, place=place)
        if place.standing is Standing.REPEATS:
            # What both go on from may not be settled yet; then this is its next state.
            return None if place.note.after and self._index.get(place.note.after) else resumes
        if echo is not None and (echo.start > place.start or (echo.start == place.start and echo.exact)):
            return None
        if place.standing is Standing.SIDE and self._may_be_side:
            return Verdict(Relation.SIDE)
        return resumes

    def _by_echo(self) -> Verdict | None:
        echo, reading, node = self._echo, self._reading, self._node
        if echo is None:
            return None
        parent = echo.node
        longer = self._unechoed(echo.end)
        if longer is not None:
            return longer
        made_summary = parent.side and not sides.was_kept(parent, reading, echo.start)
        if made_summary or sides.was_detour(parent, reading, echo.start):
            return self._after_summary(parent)
        if reading.sequence is None and echo.end == len(reading.events):
            # Nothing was said after the answer: it has no next state here.
            relation = Relation.SIDE if self._may_be_side and echo.frame < 2 else Relation.FOLLOWS
            return Verdict(relation, parent, echo=echo)
        if self._may_be_side and sides.is_aside(node, reading, parent):
            return Verdict(Relation.SIDE, parent, echo=echo)
        return Verdict(Relation.CONTINUES, parent, echo.position, echo)

    def _extends(self) -> Verdict | None:
        """An earlier request with more words: a reaction to its answer, or what is left after a summary."""
        extended = self._unechoed(0)
        return None if extended is None else self._summarised() or extended

    def _by_result(self) -> Verdict | None:
        """The newest tool result whose call is known, though it is not in the transcript."""
        reading, node = self._reading, self._node
        for event in reversed(reading.events):
            if event.kind is not Kind.RESULT or not event.call_id:
                continue
            if node.blind and not is_random(event.call_id):
                # The call that is meant may be settled, and another conversation's have the same number.
                continue
            for found in self._index.at(node.scope, "call_id", event.call_id):
                if self._is_line_of(found):
                    return Verdict(Relation.CONTINUES, found, event.item - 1)
        return None

    def _unechoed(self, start: int) -> Verdict | None:
        """The longest earlier request at the beginning of this one, past ``start``, whose answer is not in it."""
        reading, node = self._reading, self._node
        for length in range(len(reading.events) - 1, start, -1):
            for found in self._index.at(node.scope, "request", reading.prefixes[length]):
                if not self._is_line_of(found) or found.retry_of is node:
                    continue
                if any(event.kind in SPOKEN for event in reading.events[length:]):
                    # Something stands in the answer's place: it was edited, and what follows is about that.
                    return Verdict(Relation.FOLLOWS, found)
                return Verdict(Relation.CONTINUES, found, reading.events[length - 1].item)
        return None

    def _is_line_of(self, found: Node) -> bool:
        """Whether a whole, free turn is of this agent."""
        node = self._node
        return (
            found.whole
            and found.free
            and not found.side
            and found.family == node.family
            and found.frame_score(node.tools, node.system) > 0
            and not found.identity.bars(node.identity)
            and self._alive(found)
        )

    def _sub_agent(self) -> Verdict | None:
        """A user's text that a tool call gave as a task."""
        if self._reading.sequence is not None:
            return None
        for event in self._node.tail:
            for found in self._index.at(self._node.scope, "argument", hash(event.text)):
                if self._alive(found) and event.text in found.reply.arguments:
                    return Verdict(Relation.SUB_AGENT, found)
        if not self._node.tools or not self._index.has(self._node.scope, "words:argument"):
            return None
        words = sides.words_in(self._reading, Kind.USER)
        for found in self._index.quoted(self._node.scope, "argument", words.openings):
            if self._alive(found) and any(
                len(text) > 24 and is_quoted(text, words.text) for text in found.reply.arguments
            ):
                return Verdict(Relation.SUB_AGENT, found)
        return None

    def _telling(self) -> Verdict | None:
        """A side call with a transcript of its own, which tells of the conversation."""
        if not self._may_be_side or self._reading.sequence is not None or self._reading.last_kind is not Kind.USER:
            return None
        quoted = None
        if not self._node.tools and self._index.has(self._node.scope, "words:user"):
            words = sides.words_in(self._reading, Kind.USER)
            quoted = sides.find_quoted(self._index, self._node, words, self._alive, self._near)
        found = sides.find_in_session(self._index, self._node, quoted, self._near) or quoted
        return None if found is None else Verdict(Relation.SIDE, found)

    def _summarised(self) -> Verdict | None:
        summary = sides.find_summary(self._index, self._node, self._reading, self._alive)
        return None if summary is None else self._after_summary(summary)

    def _after_summary(self, summary: Node) -> Verdict | None:
        about = summary.about if summary.side else summary.parent
        if about is None:
            about = self._named_main()
        if about is None:
            return None
        turns = [turn for turn in about.session.nodes if turn is not summary and not sides_with(turn, summary)]
        candidates = [turn for turn in turns if turn.whole and not turn.side and not turn.replaced]
        same = [turn for turn in candidates if turn.frame_score(self._node.tools, self._node.system) > 0]
        parent = (same or candidates or [about])[-1]
        if parent is self._node:
            return None
        if self._may_be_side and sides.is_aside(self._node, self._reading, parent):
            return Verdict(Relation.SIDE, parent)
        return Verdict(Relation.SUMMARISED, parent, summary=summary)

    def _stated(self) -> Verdict | None:
        """Nothing in the transcript, but the client itself named the session: it forgot what was before."""
        node, reading = self._node, self._reading
        line = node.identity.line
        if line is None or not node.identity.stated or reading.sequence is not None:
            return None
        if self._index.at(node.scope, "request", node.digest):
            return None
        for found in self._index.at(node.scope, "line", line):
            if self._is_line_of(found) and found.frame_score(node.tools, node.system) == 2:
                before_tail = len(reading.events) - len(node.tail)
                position = reading.events[before_tail - 1].item if before_tail else -1
                return Verdict(Relation.CONTINUES, found, position)
        return None


def sides_with(turn: Node, summary: Node) -> bool:
    """Whether a turn comes after a summary that was taken for a turn, and so belongs to it."""
    return not summary.side and turn.session is summary.session and turn.number >= summary.number
