"""The linker: from ordered captures to settled turns. Pure: time comes in with captures and ticks."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from hintloop_contract.ids import new_id
from hintloop_contract.messages import Capture, DropReason

from hintloop_rollout_proxy.linking.decisions import Decision, Drop, Link, Placed
from hintloop_rollout_proxy.linking.matching import Match, find_attempt, find_continued, has_continued_twin
from hintloop_rollout_proxy.linking.messages import READERS, read_answer
from hintloop_rollout_proxy.linking.nodes import Continuation, Node, NodeIndex, Scope, Session
from hintloop_rollout_proxy.linking.transcript import Said, Transcript

#: Session keys that are no session ids, by how they begin.
NARROWING_KEYS = ("body:user:", "body:prompt_cache_key:")


@dataclass(frozen=True, slots=True)
class LinkerOptions:
    """Times in milliseconds. ``grace_ms``: how late a request in flight may become known after its arrival."""

    settle_ms: int = 2000
    session_timeout_ms: int = 300_000
    max_turns_per_session: int = 10
    grace_ms: int = 1000


class Linker:
    """Feed captures in order, tick with the time; every captured turn is settled once, by ``Link`` or ``Drop``."""

    def __init__(self, options: LinkerOptions, make_id: Callable[[], str] = new_id) -> None:
        """``make_id`` names sessions."""
        self._options = options
        self._make_id = make_id
        self._index = NodeIndex()
        self._deadlines: list[tuple[int, str]] = []
        self._uncertain: dict[str, Node] = {}

    def __len__(self) -> int:
        """Requests remembered."""
        return len(self._index)

    @property
    def num_open(self) -> int:
        """Turns not settled yet."""
        return sum(not node.settled for node in self._index)

    def feed(self, capture: Capture) -> list[Decision]:
        """Take the next capture. Whatever it raises, it raises before anything is remembered."""
        if capture.turn_type == "side":
            if capture.problem is not None:
                return [Drop(capture.turn_id, capture.problem, capture.problem_detail)]
            return [Drop(capture.turn_id, DropReason.SIDE, "X-Turn-Type: side")]
        reader = READERS.get(capture.api)
        if reader is None:
            return [Drop(capture.turn_id, DropReason.NOT_TRAINABLE, f"API {capture.api!r} is not linked yet")]
        try:
            transcript, said = reader(capture.request), read_answer(capture.answer)
        except (msgspec.DecodeError, ValueError, AttributeError) as error:
            return [Drop(capture.turn_id, capture.problem or DropReason.NOT_TRAINABLE, f"unreadable: {error}")]
        decisions: list[Decision] = []
        node = self._place(capture, transcript, said, decisions)
        self._index.add(node)
        heapq.heappush(self._deadlines, (node.deadline_ms, node.turn_id))
        if capture.problem is not None:
            self._drop(node, capture.problem, capture.problem_detail, decisions)
        elif capture.session_done:
            self._drop(node, DropReason.NO_NEXT_STATE, "the session was marked done", decisions)
        return decisions

    def tick(self, now_ms: int, oldest_in_flight_ms: int | None = None) -> list[Decision]:
        """Settle what waited long enough. A deadline waits for requests that arrived before it and are unanswered."""
        decisions: list[Decision] = []
        for node in list(self._uncertain.values()):
            if node.settle_at_ms is not None and node.settle_at_ms <= now_ms:
                self._release(node, decisions)
        while self._deadlines and self._deadlines[0][0] + self._options.grace_ms <= now_ms:
            deadline_ms, turn_id = self._deadlines[0]
            if oldest_in_flight_ms is not None and oldest_in_flight_ms <= deadline_ms:
                break
            heapq.heappop(self._deadlines)
            node_or_none = self._index.get(turn_id)
            if node_or_none is not None:
                self._expire(node_or_none, decisions)
        return decisions

    def flush(self) -> list[Decision]:
        """Settle everything now, as if all deadlines had passed."""
        decisions: list[Decision] = []
        for node in self._index:
            self._expire(node, decisions)
        self._deadlines.clear()
        return decisions

    def _place(self, capture: Capture, transcript: Transcript, said: Said, decisions: list[Decision]) -> Node:
        scope = scope_of(capture, transcript)
        attempt = find_attempt(self._index, scope, transcript, transcript.frame)
        match = find_continued(self._index, scope, transcript, lambda node: self._alive(node, capture.start_ms))
        node = self._make_node(capture, transcript, said, scope)
        if attempt is not None:
            self._retry(node, attempt, match, transcript, decisions)
        elif match is None:
            decisions.append(Placed(node.turn_id, node.session.session_id, 0))
        else:
            self._continue(node, match, transcript, decisions)
        return node

    def _make_node(self, capture: Capture, transcript: Transcript, said: Said, scope: Scope) -> Node:
        whole = capture.status == "complete"
        return Node(
            turn_id=capture.turn_id,
            scope=scope,
            digest=transcript.digest,
            frame=transcript.frame,
            num_units=len(transcript.units),
            said=said,
            whole=whole,
            start_ms=capture.start_ms,
            end_ms=capture.end_ms,
            deadline_ms=capture.end_ms + self._options.session_timeout_ms,
            session=Session(self._make_id(), num_turns=1),
            turn_index=0,
        )

    def _alive(self, node: Node, arrival_ms: int) -> bool:
        """Later than the deadline does not revive the turn."""
        return arrival_ms <= node.deadline_ms

    def _retry(
        self, node: Node, attempt: Node, match: Match | None, transcript: Transcript, decisions: list[Decision]
    ) -> None:
        """Take the failed attempt's place in its session."""
        node.session, node.turn_index, node.parent = attempt.session, attempt.turn_index, attempt.parent
        attempt.replaced = True
        parent = attempt.parent
        if match is not None and match.node is parent and parent is not None and parent.free:
            self._attach(parent, node, match, transcript)
        continues = parent.turn_id if parent is not None else None
        decisions.append(
            Placed(node.turn_id, node.session.session_id, node.turn_index, continues, retry_of=attempt.turn_id)
        )
        if parent is not None:
            self._settle_if_certain(parent, decisions)

    def _continue(self, node: Node, match: Match, transcript: Transcript, decisions: list[Decision]) -> None:
        parent = match.node
        certain = match.echoed and node.frame == parent.frame
        forked = not parent.gives_way_to(certain)
        node.parent, node.turn_index = parent, parent.turn_index + 1
        if not forked:
            if parent.session.num_turns < self._options.max_turns_per_session:
                node.session = parent.session
                node.session.num_turns += 1
            else:
                node.turn_index = 0
            self._attach(parent, node, match, transcript)
        self._settle_older(parent, decisions)
        session_id = node.session.session_id
        decisions.append(Placed(node.turn_id, session_id, node.turn_index, parent.turn_id, forked=forked))
        self._settle_if_certain(parent, decisions)

    def _attach(self, parent: Node, node: Node, match: Match, transcript: Transcript) -> None:
        """Let ``node`` carry the parent's next state, unless the parent is settled already."""
        certain = match.echoed and node.frame == parent.frame
        parent.next = Continuation(node, transcript.after_unit(match.last_unit), certain)
        if not parent.settled and not certain:
            parent.settle_at_ms = node.end_ms + self._options.settle_ms
            self._uncertain[parent.turn_id] = parent

    def _settle_if_certain(self, parent: Node, decisions: list[Decision]) -> None:
        if parent.next is not None and parent.next.certain:
            self._release(parent, decisions)

    def _settle_older(self, node: Node, decisions: list[Decision]) -> None:
        """The line went on past ``node``, so what its own parent waited for will not come any more."""
        if node.parent is not None and node.parent.turn_id in self._uncertain:
            self._release(node.parent, decisions)

    def _release(self, node: Node, decisions: list[Decision]) -> None:
        self._uncertain.pop(node.turn_id, None)
        if node.settled or node.next is None:
            return
        node.settled = True
        following = node.next
        decisions.append(
            Link(node.turn_id, node.session.session_id, node.turn_index, following.next_state, following.node.turn_id)
        )
        following.next_state = b""

    def _drop(self, node: Node, reason: str, detail: str, decisions: list[Decision]) -> None:
        self._uncertain.pop(node.turn_id, None)
        if not node.settled:
            node.settled = True
            decisions.append(Drop(node.turn_id, reason, detail))

    def _expire(self, node: Node, decisions: list[Decision]) -> None:
        """The deadline passed: release on what there is, or drop, and forget."""
        if node.next is not None:
            self._release(node, decisions)
        elif has_continued_twin(self._index, node):
            self._drop(node, DropReason.RETRY, "an equal request with an equal answer was continued", decisions)
        else:
            seconds = self._options.session_timeout_ms / 1000
            self._drop(node, DropReason.NO_NEXT_STATE, f"no next request within {seconds:g} s", decisions)
        node.parent = None
        self._index.remove(node)


def scope_of(capture: Capture, transcript: Transcript) -> Scope:
    """A session id separates; without one, only equal system texts and tools belong together.

    ``user`` and ``prompt_cache_key`` name whoever asks, not a conversation: one value may stand behind many agents,
    so they only narrow what the frame holds together.
    """
    key = capture.session_key
    frame = f"frame:{transcript.frame.hex()}"
    own: tuple[str, ...]
    if key is None:
        own = (frame,)
    elif key.startswith(NARROWING_KEYS):
        own = (frame, f"key:{key}")
    else:
        own = (f"key:{key}",)
    return (capture.tenant, capture.credential, capture.api, *own)
