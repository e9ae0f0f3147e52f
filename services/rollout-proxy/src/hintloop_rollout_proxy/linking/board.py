"""All that the linker remembers, and the elementary moves on it. Owns settling once; decides no relation."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from hintloop_contract.messages import DropReason, TurnNote

from hintloop_rollout_proxy.linking.decisions import Decision, Drop, Link, Placed
from hintloop_rollout_proxy.linking.earlier import EarlierTurns, note_of
from hintloop_rollout_proxy.linking.events import Reading
from hintloop_rollout_proxy.linking.index import Index
from hintloop_rollout_proxy.linking.nodes import Continuation, Node, Session

#: How much later than the next request a cut answer's capture may say that it ended: a hang-up is noticed late.
CUT_SLACK_MS = 2_000
#: The same for whole answers.
SLACK_MS = 50
#: Most requests whose history is known in part only, remembered in full until what is missing comes in.
MAX_ORPHANS = 512
#: Why turns are dropped that no request goes on from, or whose place another one took.
OUT_OF_LINE = frozenset({DropReason.SIDE, DropReason.RETRY, DropReason.NOT_CONTINUED, DropReason.NO_NEXT_STATE})


@dataclass(frozen=True, slots=True)
class LinkerOptions:
    """Times in milliseconds. ``grace_ms``: how late a request in flight may become known after its arrival;
    ``doubt_ms``: how long a link waits when its request may yet show as a side call; ``max_requests``: most requests
    remembered, the oldest are settled first."""

    settle_ms: int = 2000
    session_timeout_ms: int = 300_000
    max_turns_per_session: int = 10
    grace_ms: int = 1000
    doubt_ms: int = 30_000
    max_requests: int = 50_000


class Board:
    """Nodes, sessions and what is due."""

    def __init__(self, options: LinkerOptions, make_id: Callable[[], str]) -> None:
        """``make_id`` names sessions."""
        self.options = options
        self.index = Index()
        self.sessions: dict[str, Session] = {}
        self.orphans: dict[str, Reading] = {}
        self.due: list[tuple[int, int, str]] = []
        self._make_id = make_id
        self._touched: dict[str, Node] = {}
        self._decisions: list[Decision] = []
        self.earlier = self._no_earlier()

    def take(self) -> list[Decision]:
        """What was decided since the last call: places first."""
        places: list[Decision] = [_placed(node) for node in self._touched.values()]
        decisions = places + self._decisions
        self._touched, self._decisions = {}, []
        return decisions

    def touch(self, node: Node) -> None:
        """Say again where a node stands."""
        self._touched[node.turn_id] = node

    def forget_earlier(self) -> None:
        """What earlier linkers settled cannot be gone on with any more."""
        if len(self.earlier):
            self.earlier = self._no_earlier()

    def _no_earlier(self) -> EarlierTurns:
        return EarlierTurns(self.options.session_timeout_ms, SLACK_MS, CUT_SLACK_MS)

    def new_session(self) -> Session:
        """A session of its own."""
        session = Session(self._make_id())
        self.sessions[session.session_id] = session
        return session

    def resumed_session(self, note: TurnNote) -> Session:
        """The session of a turn that an earlier linker settled, as it was then."""
        session = self.sessions.get(note.session_id)
        if session is None:
            session = Session(note.session_id, num_turns=note.num_turns, segment=note.segment)
            self.sessions[note.session_id] = session
        return session

    def enter(self, node: Node, session: Session, *, counts: bool = True) -> None:
        """Let a node stand in a session; a retry does not count as a turn."""
        self.leave(node)
        node.session = session
        session.nodes.append(node)
        if counts:
            if session.num_turns >= self.options.max_turns_per_session:
                session.segment += 1
                session.num_turns = 0
            session.num_turns += 1
        node.segment, node.num_turns = session.segment, session.num_turns
        self.touch(node)

    def leave(self, node: Node) -> None:
        """Take a node out of its session."""
        session = node.session
        if node in session.nodes:
            session.nodes.remove(node)
        if not session.nodes:
            self.sessions.pop(session.session_id, None)

    def set_aside(self, node: Node, about: Node | None) -> None:
        """Make a node a side call: it stands in no session and continues nothing."""
        self.leave(node)
        node.session = Session("")
        node.side, node.about = True, about
        node.continues = node.forked = False
        self.touch(node)

    def attach(self, parent: Node, node: Node, next_state: bytes, *, certain: bool, doubtful: bool = False) -> None:
        """Let ``node`` carry the parent's next state, and release the parent at once when that is certain."""
        node.parent, node.continues = parent, True
        parent.next = Continuation(node, b"" if parent.settled else next_state, certain, doubtful)
        self._drop_other_choices(parent)
        if parent.settled:
            return
        if certain and not doubtful:
            self.release(parent)
        else:
            wait_ms = self.options.doubt_ms if doubtful else self.options.settle_ms
            parent.settle_at_ms = node.end_ms + wait_ms
            heapq.heappush(self.due, (parent.settle_at_ms, parent.number, parent.turn_id))

    def _drop_other_choices(self, chosen: Node) -> None:
        for other in chosen.choices.nodes if chosen.choices is not None else ():
            if other is not chosen and other.next is None:
                self.drop(other, DropReason.NOT_CONTINUED, "another choice of this request was the one continued")

    def release(self, node: Node) -> None:
        """Settle a turn on the next state that it has."""
        following = node.next
        if node.settled or following is None:
            return
        node.settled = True
        self._decisions.append(
            Link(
                node.turn_id,
                node.session.session_id,
                node.turn_index,
                following.next_state,
                following.node.turn_id,
                node.segment,
                note=_note(node),
            )
        )
        following.next_state = b""

    def settle_with(self, node: Node, next_state: bytes, source: str, score: int | None) -> None:
        """Settle a turn on what somebody said about it."""
        node.settled = True
        self._decisions.append(
            Link(
                node.turn_id,
                node.session.session_id,
                node.turn_index,
                next_state,
                source,
                node.segment,
                score,
                _note(node),
            )
        )

    def drop(self, node: Node, reason: str, detail: str) -> None:
        """Settle a turn as one that is not trained."""
        if not node.settled:
            node.settled = True
            self.say_dropped(node, reason, detail)

    def say_dropped(self, node: Node, reason: str, detail: str) -> None:
        """Tell of a turn that counts as settled why it is not trained."""
        note = None if reason in OUT_OF_LINE else _note(node)
        self._decisions.append(Drop(node.turn_id, reason, detail, note))

    def refuse(self, turn_id: str, reason: str, detail: str) -> None:
        """Settle a capture that is not remembered."""
        self._decisions.append(Drop(turn_id, reason, detail))

    def forget(self, node: Node) -> None:
        """Let go of a node; what it stood for is settled."""
        self.index.remove(node)
        self.orphans.pop(node.turn_id, None)
        self.leave(node)
        node.parent = node.about = node.retry_of = node.instead_of = node.next = None

    def keep_orphan(self, node: Node, reading: Reading) -> None:
        """Remember in full a request of which a part of the history is not known."""
        self.orphans[node.turn_id] = reading
        if len(self.orphans) > MAX_ORPHANS:
            self.orphans.pop(next(iter(self.orphans)))

    def alive_for(self, newcomer: Node) -> Callable[[Node], bool]:
        """Whether a node may be continued by ``newcomer``: answered before it arrived, its deadline not over."""

        def alive(node: Node) -> bool:
            if not node.answered or node is newcomer or newcomer.start_ms > node.deadline_ms:
                return False
            return node.end_ms <= newcomer.start_ms + (SLACK_MS if node.whole else CUT_SLACK_MS)

        return alive

    def near_to(self, newcomer: Node) -> Callable[[Node], bool]:
        """Whether a node was asked before ``newcomer`` was answered, and may still be gone on with: a title's call is
        made beside the turn that it tells of."""

        def near(node: Node) -> bool:
            return node is not newcomer and node.start_ms <= newcomer.end_ms and newcomer.start_ms <= node.deadline_ms

        return near


def _note(node: Node) -> TurnNote | None:
    """What is noted of a node that stands in a session."""
    return note_of(node) if node.session.session_id else None


def _placed(node: Node) -> Placed:
    parent = node.parent if node.continues else None
    return Placed(
        turn_id=node.turn_id,
        session_id=node.session.session_id,
        turn_index=node.turn_index,
        segment=node.segment,
        continues=None if parent is None else parent.turn_id,
        retry_of=None if node.retry_of is None else node.retry_of.turn_id,
        forked=node.forked,
        side=node.side,
        gap_ms=None if parent is None else node.start_ms - parent.end_ms,
    )
