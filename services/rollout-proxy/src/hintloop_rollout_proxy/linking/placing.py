"""Gives requests their place: what follows for sessions, links and earlier verdicts. Owns every change of mind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hintloop_contract.messages import DropReason

from hintloop_rollout_proxy.linking import sides
from hintloop_rollout_proxy.linking.attempts import find_late_repeat, was_rewritten
from hintloop_rollout_proxy.linking.board import Board
from hintloop_rollout_proxy.linking.chat_form import without_instruction
from hintloop_rollout_proxy.linking.earlier import Standing
from hintloop_rollout_proxy.linking.echoes import Echo, find_echo
from hintloop_rollout_proxy.linking.events import Kind, Reading
from hintloop_rollout_proxy.linking.index import echo_keys
from hintloop_rollout_proxy.linking.likeness import is_retold
from hintloop_rollout_proxy.linking.nodes import Node, Scope
from hintloop_rollout_proxy.linking.normal_form import words_of
from hintloop_rollout_proxy.linking.verdicts import Relation, Verdict

#: Openings that may show as side calls of a later one: how many of a client.
MAX_SUSPECTS = 256
#: Characters of such an opening that are looked at.
SUSPECT_LENGTH = 20_000
#: Share of a turn's events below which what follows it was rewritten, and stands in a new segment.
REWRITTEN_SHARE = 0.5

_Place = Callable[[Node, Reading, Verdict], None]


class Placer:
    """Moves on the board what a verdict says."""

    def __init__(self, board: Board) -> None:
        """Move on ``board``."""
        self._board = board
        self._suspects: dict[Scope, deque[tuple[Node, str]]] = {}
        self._places: dict[Relation, _Place] = {
            Relation.ROOT: self._root,
            Relation.SUB_AGENT: self._open,
            Relation.CHOICE: self._choice,
            Relation.RETRY: self._retry,
            Relation.AFTER_FAILED: self._after_failed,
            Relation.CONTINUES: self._continues,
            Relation.RESUMES: self._resumes,
            Relation.FOLLOWS: self._follows,
            Relation.SUMMARISED: self._summarised,
            Relation.SIDE: self._side,
        }

    def place(self, node: Node, reading: Reading, verdict: Verdict) -> None:
        """Give a newcomer its place, remember it, and let earlier ones that waited for it find theirs."""
        self._places[verdict.relation](node, reading, verdict)
        if reading.previous_id is not None and verdict.other is not None:
            node.hashes = verdict.other.hashes + node.hashes
        self._board.index.add(node)
        if verdict.relation is Relation.ROOT and reading.blocks:
            self._await(node, reading)
        self._find_orphans(node)
        if not node.whole and not node.replaced:
            self._find_late_repeat(node)

    # What a verdict says, one by one.

    def _open(self, node: Node, reading: Reading, verdict: Verdict) -> None:
        self._board.enter(node, self._board.new_session())

    def _root(self, node: Node, reading: Reading, verdict: Verdict) -> None:
        self._open(node, reading, verdict)
        self._note_opening(node, reading)

    def _note_opening(self, node: Node, reading: Reading) -> None:
        """It may have had a title made, or may be the call for one."""
        if reading.sequence is None:
            self._find_titles(node, reading)
            if node.tail and not node.tools and not node.identity.sub_agent:
                words = f" {' '.join(words_of(reading.texts(Kind.USER)[:SUSPECT_LENGTH]))} "
                suspects = self._suspects.setdefault(node.scope, deque(maxlen=MAX_SUSPECTS))
                suspects.append((node, words))

    def _find_titles(self, main: Node, reading: Reading) -> None:
        """Openings a moment ago that told of this one were titles, plans, or the like."""
        kept: deque[tuple[Node, str]] = deque(maxlen=MAX_SUSPECTS)
        for side, words in self._suspects.pop(main.scope, ()):
            attempts = list(side.session.nodes)
            if side.side or side.parent or main.start_ms > side.deadline_ms or any(node.next for node in attempts):
                continue
            apart = main.identity.bars(side.identity) or main.family != side.family
            if not apart and sides.is_title_of(side, words, main, reading):
                for attempt in attempts:
                    self._board.set_aside(attempt, main)
            else:
                kept.append((side, words))
        if kept:
            self._suspects[main.scope] = kept

    def _choice(self, node: Node, reading: Reading, verdict: Verdict) -> None:
        first = verdict.other
        assert first is not None
        self._board.enter(node, first.session, counts=False)
        node.turn_index, node.parent, node.continues = first.turn_index, first.parent, first.continues
        node.forked, node.side, node.retry_of = first.forked, first.side, first.retry_of

    def _side(self, node: Node, reading: Reading, verdict: Verdict) -> None:
        self._board.set_aside(node, verdict.other)
        if verdict.echo is not None:
            node.carried = reading.after(verdict.echo.position)

    def _resumes(self, node: Node, reading: Reading, verdict: Verdict) -> None:
        board, place = self._board, verdict.place
        assert place is not None
        note = place.note
        board.earlier.taken(place, node)
        if place.standing is Standing.CONTINUES:
            node.after, node.turn_index = note.turn_id, note.turn_index + 1
            board.enter(node, board.resumed_session(note))
        elif place.standing is Standing.REPEATS:
            node.after, node.turn_index = note.after, note.turn_index
            board.enter(node, board.resumed_session(note), counts=False)
            if note.turn_index == 0:
                self._note_opening(node, reading)
        else:
            node.turn_index, node.forked = note.turn_index + 1, True
            board.enter(node, board.new_session())

    def _follows(self, node: Node, reading: Reading, verdict: Verdict) -> None:
        other = verdict.other
        assert other is not None
        if other.side or not other.free or other.identity.forks(node.identity):
            self._open(node, reading, verdict)
            return
        node.parent, node.turn_index = other, other.turn_index + 1
        self._board.enter(node, other.session)

    def _retry(self, node: Node, reading: Reading, verdict: Verdict) -> None:
        attempt = verdict.other
        assert attempt is not None
        self._take_over(node, attempt, reading, verdict.echo)
        node.retry_of = attempt
        if attempt.whole:
            self._board.drop(attempt, DropReason.RETRY, "the client counted a retry of it")

    def _after_failed(self, node: Node, reading: Reading, verdict: Verdict) -> None:
        attempt = verdict.other
        assert attempt is not None
        self._take_over(node, attempt, reading, verdict.echo)
        node.instead_of = attempt

    def _take_over(self, node: Node, attempt: Node, reading: Reading, echo: Echo | None) -> None:
        """Stand in a failed attempt's place."""
        board, parent = self._board, attempt.parent
        attempt.replaced = True
        if attempt.side:
            board.set_aside(node, attempt.about)
            node.carried = attempt.carried
            return
        node.turn_index, node.forked = attempt.turn_index, attempt.forked
        board.enter(node, attempt.session, counts=False)
        if parent is None:
            return
        node.parent = parent
        if attempt.continues:
            attempt.continues, node.continues = False, True
            board.touch(attempt)
            if parent.next is not None and parent.next.node is attempt:
                same = echo is not None and echo.node is parent
                next_state = reading.after(echo.position) if same and echo is not None else parent.next.next_state
                following = parent.next
                board.attach(parent, node, next_state, certain=following.certain, doubtful=following.doubtful)

    def _continues(self, node: Node, reading: Reading, verdict: Verdict) -> None:
        board, parent, echo = self._board, verdict.other, verdict.echo
        assert parent is not None
        if parent.side:
            self._take_back(parent)
        failed = parent.instead_of
        if failed is not None and echo is not None and was_rewritten(failed, parent, reading, echo.start):
            parent.instead_of, parent.retry_of = None, failed
            board.touch(parent)
        sure = reading.previous_id is not None or (echo is not None and self._is_sure(node, parent, echo))
        doubtful = not reading.previous_id and sides.is_doubtful(node, reading, parent)
        forked = not parent.free and not self._makes_way(parent, node, reading, sure)
        rival = parent.next.node if parent.next is not None else None
        node.turn_index = parent.turn_index + 1
        if forked or parent.identity.forks(node.identity):
            node.parent, node.continues, node.forked = parent, True, True
            board.enter(node, board.new_session())
        else:
            if echo is not None and echo.share < REWRITTEN_SHARE and not echo.exact:
                self._open_segment(parent)
            self._settle_older(parent, node)
            board.enter(node, parent.session, counts=not (rival is not None and not rival.whole))
        if not forked:
            if rival is not None and rival.continues and rival.parent is parent:
                # It failed, and this is what came in its place.
                rival.continues, rival.replaced = False, True
                board.touch(rival)
            board.attach(parent, node, reading.after(verdict.position), certain=sure, doubtful=doubtful)

    def _is_sure(self, node: Node, parent: Node, echo: Echo) -> bool:
        same_tools = node.tools == parent.tools and (bool(node.tools) or node.system == parent.system)
        return same_tools and (echo.sure or echo.share > REWRITTEN_SHARE)

    def _open_segment(self, parent: Node) -> None:
        parent.session.segment += 1
        parent.session.num_turns = 0

    def _settle_older(self, parent: Node, node: Node) -> None:
        """The line went on past ``parent``, so what its own parent waited for will not come any more; and a turn that
        is gone on with as before it was no side call."""
        older = parent.parent
        if older is None or older.next is None or older.next.node is not parent:
            return
        if not older.next.doubtful or older.frame_score(node.tools, node.system) == 2:
            self._board.release(older)

    def _summarised(self, node: Node, reading: Reading, verdict: Verdict) -> None:
        """Go on from the last answer of the main line. What followed it may be seen in the side call only."""
        board, parent, summary = self._board, verdict.other, verdict.summary
        assert parent is not None and summary is not None
        if not summary.side and summary.parent is not None:
            # It was taken for a turn.
            self._unmask(summary, summary.parent)
        rival = parent.next.node if parent.next is not None else None
        if rival is not None and not parent.free and rival.whole:
            if rival.tools == parent.tools or rival is summary:
                board.enter(node, parent.session)
                return
            self._unmask(rival, parent)
        next_state = self._seen_after(parent, summary, reading)
        self._open_segment(parent)
        node.turn_index = parent.turn_index + 1
        board.enter(node, parent.session)
        if rival is not None and not rival.side:
            rival.continues, rival.replaced = False, True
            board.touch(rival)
        board.attach(parent, node, next_state, certain=False)

    def _seen_after(self, parent: Node, summary: Node, reading: Reading) -> bytes:
        """What followed the parent's answer: what the side call shows, and the user's words after the summary."""
        last = -1
        for event in reading.events:
            if event.kind is not Kind.RESULT and is_retold(summary.reply, f" {' '.join(words_of(event.text))} "):
                last = event.item
        after = reading.after(last)
        carried = without_instruction(summary.carried) if summary.about is parent else b"[]"
        if after == b"[]" and carried == b"[]":
            return reading.after(last - 1)
        if b"[]" in (after, carried):
            return after if carried == b"[]" else carried
        return carried[:-1] + b"," + after[1:]

    # Changes of mind.

    def _take_back(self, side: Node) -> None:
        """A side call that is continued was a turn."""
        board, about = self._board, side.about
        side.side, side.about = False, None
        if about is None or about.identity.forks(side.identity) or side.carried == b"[]" or not about.free:
            board.enter(side, board.new_session())
            return
        side.turn_index = about.turn_index + 1
        board.enter(side, about.session)
        board.attach(about, side, side.carried, certain=False)

    def _makes_way(self, parent: Node, node: Node, reading: Reading, certain: bool) -> bool:
        """Whether what continues ``parent`` so far was no turn, or less sure than ``node``, and give it up."""
        assert parent.next is not None
        rival, following = parent.next.node, parent.next
        back = parent.frame_score(node.tools, node.system) > parent.frame_score(rival.tools, rival.system)
        texts = sides.words_in(reading, Kind.USER, Kind.ANSWER).text if rival.reply.telling else ""
        summed_up = is_retold(rival.reply, texts) if texts else False
        if rival.tail and (back or (summed_up and not sides.was_kept(rival, reading, len(reading.events)))):
            self._unmask(rival, parent)
            return True
        if certain and not following.certain and not parent.settled:
            rival.continues, rival.forked, rival.parent = False, True, parent
            self._move_line(rival, self._board.new_session().session_id)
            parent.next = None
            return True
        return False

    def _unmask(self, rival: Node, parent: Node) -> None:
        """``rival`` and what continued it were no turns of the main line."""
        if parent.next is not None and parent.next.node is rival:
            state = parent.next.next_state
            rival.carried = state or b"[]"
            parent.next = None
        following: Node | None = rival
        while following is not None and not following.side:
            after = following.next.node if following.next is not None else None
            parent.session.num_turns = max(0, parent.session.num_turns - 1)
            self._board.set_aside(following, parent)
            following = after

    def _move_line(self, node: Node, session_id: str) -> None:
        """Let a node and what continues it stand in another session."""
        session = self._board.sessions[session_id]
        following: Node | None = node
        while following is not None:
            self._board.enter(following, session)
            following = following.next.node if following.next is not None else None

    # What became known late.

    def _await(self, node: Node, reading: Reading) -> None:
        """The answer that this request echoes may come in later."""
        block = reading.blocks[-1]
        for kind, value in echo_keys(reading.events[block.start : block.end], block.text):
            self._board.index.put(node, f"orphan:{kind}", value)
        self._board.keep_orphan(node, reading)

    def _find_orphans(self, node: Node) -> None:
        board, index = self._board, self._board.index
        if not board.orphans or not node.answered:
            return
        for kind, value in [key[1:] for key in node.keys if key[1] in ("text", "call", "call_id", "mark")]:
            for orphan in index.at(node.scope, f"orphan:{kind}", value):
                reading = board.orphans.get(orphan.turn_id)
                if reading is None or orphan is node or orphan.parent is not None or orphan.side:
                    continue
                if _leads_to(orphan, node):
                    # By wrong times the answer came after the request that echoes it; a line has one direction.
                    continue
                alive = board.alive_for(orphan)
                echo = find_echo(index, orphan, reading, alive)
                if echo is not None and echo.node is node and node.free:
                    self._adopt(node, orphan, reading, echo)

    def _adopt(self, node: Node, orphan: Node, reading: Reading, echo: Echo) -> None:
        """Join the line of a request to the answer that it echoes."""
        board = self._board
        board.orphans.pop(orphan.turn_id, None)
        for offset, moved in enumerate(list(orphan.session.nodes)):
            moved.turn_index = node.turn_index + 1 + offset
            board.enter(moved, node.session)
        board.attach(node, orphan, reading.after(echo.position), certain=self._is_sure(orphan, node, echo))

    def _find_late_repeat(self, failed: Node) -> None:
        board = self._board
        repeat = find_late_repeat(board.index, failed)
        if repeat is None or repeat.side:
            return
        failed.replaced = True
        failed.continues, failed.forked = False, repeat.forked
        failed.parent, failed.turn_index = repeat.parent, repeat.turn_index
        board.enter(failed, repeat.session, counts=False)
        repeat.retry_of = failed
        board.touch(repeat)


def _leads_to(node: Node, later: Node) -> bool:
    """Whether ``later`` stands behind ``node`` in its line."""
    following = node.next
    while following is not None:
        if following.node is later:
            return True
        following = following.node.next
    return False
