"""The linker: from ordered captures to settled turns. Pure: time comes in with captures and ticks."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable

import msgspec
from hintloop_contract.ids import new_id
from hintloop_contract.messages import Capture, DropReason, TurnNote
from hintloop_contract.tensors import unpack

from hintloop_rollout_proxy.apis.identity import core_of
from hintloop_rollout_proxy.linking.board import Board, LinkerOptions
from hintloop_rollout_proxy.linking.chat_reading import read_reply
from hintloop_rollout_proxy.linking.decisions import Decision
from hintloop_rollout_proxy.linking.events import Reading, Reply
from hintloop_rollout_proxy.linking.feedback import give_feedback
from hintloop_rollout_proxy.linking.identity import read_identity
from hintloop_rollout_proxy.linking.late import LateContinuations
from hintloop_rollout_proxy.linking.nodes import Choices, Node, Session
from hintloop_rollout_proxy.linking.placing import Placer
from hintloop_rollout_proxy.linking.reading import READERS
from hintloop_rollout_proxy.linking.sequences import SequenceEnd, ends_of
from hintloop_rollout_proxy.linking.verdicts import Classifier

#: The API of a capture that is no request but what somebody said about a turn.
FEEDBACK = "feedback"


class Linker:
    """Feed captures in order, tick with the time; every captured turn is settled once, by ``Link`` or ``Drop``."""

    def __init__(self, options: LinkerOptions, make_id: Callable[[], str] = new_id) -> None:
        """``make_id`` names sessions."""
        self._options = options
        self._board = Board(options, make_id)
        self._placer = Placer(self._board)
        self._deadlines: list[tuple[int, int, str]] = []
        self._late = LateContinuations(self._board.index)
        self._count = 0
        self._blind_until_ms = 0
        self.late_ms: int | None = None
        """Of the capture fed last: how long after the answer it came, when that had timed out before."""

    def __len__(self) -> int:
        """Requests remembered."""
        return len(self._board.index)

    @property
    def num_open(self) -> int:
        """Turns not settled yet."""
        return sum(not node.settled for node in self._board.index)

    def knows_nothing_before(self, now_ms: int) -> None:
        """Turns that were settled before ``now_ms`` are not remembered, and requests may go on from them."""
        self._blind_until_ms = now_ms + self._options.session_timeout_ms

    def resume(self, notes: Iterable[TurnNote]) -> None:
        """Know what earlier linkers settled: requests that go on from it stand in its sessions."""
        self._board.earlier.add(notes)

    def feed(self, capture: Capture) -> list[Decision]:
        """Take the next capture. Whatever it raises, it raises before anything is remembered."""
        board, self.late_ms = self._board, None
        if capture.api == FEEDBACK:
            give_feedback(board, capture)
            return board.take()
        reader = READERS.get(capture.api)
        if reader is None:
            board.refuse(capture.turn_id, DropReason.NOT_TRAINABLE, f"API {capture.api!r} is not linked")
            return board.take()
        try:
            reading, reply = reader(capture.request), read_reply(capture.answer)
        except (msgspec.DecodeError, ValueError, AttributeError) as error:
            reason = capture.problem or DropReason.NOT_TRAINABLE
            board.refuse(capture.turn_id, reason, f"unreadable: {error}")
            return board.take()
        node = self._make_node(capture, reading, reply)
        late = self._late.gap_ms(node, reading)
        if late is not None and late[1]:
            self.late_ms = late[0]
        node.blind = late is not None or capture.start_ms < self._blind_until_ms
        verdict = Classifier(board, node, reading, capture.turn_type).verdict()
        refusal = _refusal(capture)
        # What is refused by itself is settled, whoever goes on from it; where it stands is known once it is placed.
        node.settled = refusal is not None
        self._placer.place(node, reading, verdict)
        if refusal is not None:
            board.say_dropped(node, *refusal)
        heapq.heappush(self._deadlines, (node.deadline_ms, node.number, node.turn_id))
        if capture.session_done:
            for earlier in list(node.session.nodes):
                board.release(earlier)
        while len(board.index) > self._options.max_requests:
            self._expire(next(iter(board.index)))
        return board.take()

    def tick(self, now_ms: int, oldest_in_flight_ms: int | None = None) -> list[Decision]:
        """Settle what waited long enough. A deadline waits for requests that arrived before it and are unanswered."""
        board = self._board
        if now_ms > self._blind_until_ms + self._options.session_timeout_ms:
            # Requests that arrived while it could be gone on with, and were answered late, are in by now.
            board.forget_earlier()
        while board.due and board.due[0][0] <= now_ms:
            due_ms, _, turn_id = heapq.heappop(board.due)
            node = board.index.get(turn_id)
            if node is not None and node.settle_at_ms == due_ms:
                board.release(node)
        while self._deadlines and self._deadlines[0][0] + self._options.grace_ms <= now_ms:
            deadline_ms, _, turn_id = self._deadlines[0]
            if oldest_in_flight_ms is not None and oldest_in_flight_ms <= deadline_ms:
                break
            heapq.heappop(self._deadlines)
            expired = board.index.get(turn_id)
            if expired is not None:
                self._expire(expired)
        return board.take()

    def flush(self) -> list[Decision]:
        """Settle everything now, as if all deadlines had passed."""
        for node in self._board.index:
            self._expire(node)
        self._deadlines.clear()
        self._board.due.clear()
        return self._board.take()

    def _make_node(self, capture: Capture, reading: Reading, reply: Reply) -> Node:
        self._count += 1
        identity = read_identity(capture, reading.ids)
        tail = reading.tail()
        node = Node(
            turn_id=capture.turn_id,
            number=self._count,
            scope=(capture.tenant, capture.credential),
            family=capture.api,
            identity=identity,
            digest=reading.digest,
            hashes=reading.hashes,
            leads=array("q", [hash((event.kind, lead)) for event in tail for lead in event.leads]),
            tail=tail,
            head_digest=reading.prefixes[len(reading.events) - len(tail)],
            tools=reading.tools,
            system=reading.system,
            reply=reply,
            whole=capture.status == "complete",
            refused=capture.status == "refused",
            start_ms=capture.start_ms,
            end_ms=capture.end_ms,
            deadline_ms=capture.end_ms + self._options.session_timeout_ms,
            session=Session(""),
            sequence_ends=_sequence_ends(capture, reading),
            response_id=capture.response_id,
            core=core_of(capture.response_id) if capture.response_id else None,
            small=reading.max_tokens == 1,
            side=capture.turn_type == "side" or (identity.side and capture.turn_type != "main"),
        )
        if capture.num_choices > 1 and capture.response_id is not None:
            self._group(node)
        return node

    def _group(self, node: Node) -> None:
        """Join the captures of one request's choices."""
        node.choices = Choices()
        for other in self._board.index.at((node.scope[0], ""), "response", node.response_id):
            if other.choices is not None and other.digest == node.digest:
                node.choices = other.choices
        node.choices.nodes.append(node)

    def _expire(self, node: Node) -> None:
        """The deadline passed: release on what there is, or drop, and forget."""
        board = self._board
        if node.next is not None:
            board.release(node)
        elif node.side or node.small:
            board.drop(node, DropReason.SIDE, "a side call: it is about a conversation, or a probe, and part of none")
        elif self._has_continued_twin(node):
            board.drop(node, DropReason.RETRY, "an equal request with an equal answer was continued")
        else:
            seconds = self._options.session_timeout_ms / 1000
            board.drop(node, DropReason.NO_NEXT_STATE, f"no next request within {seconds:g} s")
            self._late.gone(node)
        if node.small and node.next is None and node.parent is None and not node.side:
            board.set_aside(node, None)
        board.forget(node)

    def _has_continued_twin(self, node: Node) -> bool:
        """Whether an equal request was answered and continued in this one's place."""
        return any(
            twin is not node
            and twin.next is not None
            and twin.frame_score(node.tools, node.system) == 2
            and twin.reply == node.reply
            for twin in self._board.index.at(node.scope, "request", node.digest)
        )


def _refusal(capture: Capture) -> tuple[str, str] | None:
    """Why the capture by itself is no turn: reason and detail."""
    if capture.problem is not None:
        return capture.problem, capture.problem_detail
    if capture.turn_type == "side":
        return DropReason.SIDE, "X-Turn-Type: side"
    if capture.session_done:
        return DropReason.NO_NEXT_STATE, "the session was marked done"
    return None


def _sequence_ends(capture: Capture, reading: Reading) -> tuple[SequenceEnd, ...]:
    """Where the answer to a prompt without messages ends, in the ways in which it may be repeated."""
    if reading.sequence is None or capture.answer is None:
        return ()
    content = msgspec.json.decode(capture.answer).get("content")
    ids = None if capture.response_ids is None else array("i", unpack(capture.response_ids).tolist())
    return ends_of(reading.sequence, content if isinstance(content, str) else "", ids)
