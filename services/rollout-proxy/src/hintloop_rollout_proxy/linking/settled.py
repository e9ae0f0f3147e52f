"""Settled turns that earlier linkers knew, and the requests that go on from one of them. Compares digests only.

A turn that is settled is no capture any more, so whoever links next cannot read it again. What is kept of it tells its
session, its place there, and digests of what it said; a request that repeats it word by word stands behind it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hintloop_contract.messages import SettledTurn

from hintloop_rollout_proxy.linking.events import Block, Kind, Reading
from hintloop_rollout_proxy.linking.identity import Identity
from hintloop_rollout_proxy.linking.nodes import Node, Scope
from hintloop_rollout_proxy.linking.sequences import SequenceEnd, begins_with, step_keys


@dataclass(frozen=True, slots=True)
class Place:
    """A settled turn, and where in a request its answer begins; of a ``retry``, the answer that both go on from.
    ``known``: an earlier linker settled that, too."""

    turn: SettledTurn
    start: int
    known: bool
    retry: bool = False


def settled_turn(node: Node, next_turn_id: str | None) -> SettledTurn:
    """What is kept of a node that is settled; ``next_turn_id`` went on from it, as far as known."""
    tenant, credential = node.scope
    return SettledTurn(
        turn_id=node.turn_id,
        tenant=tenant,
        credential=credential,
        api=node.family,
        session_id=node.session.session_id,
        turn_index=node.turn_index,
        segment=node.segment,
        num_turns=node.num_turns,
        identity=(node.identity.session, node.identity.branch),
        frame=_frame(node.tools, node.system),
        request=node.digest,
        answer=_digest([node.reply.text], sorted(node.reply.calls)),
        ends=tuple((end.length, *end.key, end.digest) for end in node.sequence_ends),
        response_id=node.response_id,
        failed=not node.whole,
        next_turn_id=next_turn_id,
        end_ms=node.end_ms,
    )


class SettledTurns:
    """What earlier linkers settled, found by requests that go on from it."""

    def __init__(self, slack_ms: int, timeout_ms: int) -> None:
        """A request goes on from what ended ``slack_ms`` after its arrival, ``timeout_ms`` before it at most."""
        self._slack_ms = slack_ms
        self._timeout_ms = timeout_ms
        self._by_request: dict[tuple[Scope, bytes], list[SettledTurn]] = {}
        self._by_end: dict[tuple[Scope, tuple[int, bytes]], list[tuple[SettledTurn, SequenceEnd]]] = {}
        self._by_response: dict[tuple[str, str], list[SettledTurn]] = {}
        self._continued: dict[str, str] = {}

    def add(self, turns: Iterable[SettledTurn]) -> None:
        """Know these, the newest last."""
        for turn in turns:
            scope = (turn.tenant, turn.credential)
            self._by_request.setdefault((scope, turn.request), []).append(turn)
            for length, step, step_digest, digest in turn.ends:
                end = SequenceEnd(length, (step, step_digest), digest)
                self._by_end.setdefault((scope, end.key), []).append((turn, end))
            if turn.response_id is not None:
                self._by_response.setdefault((turn.tenant, turn.response_id), []).append(turn)
            if turn.next_turn_id is not None:
                self._continued[turn.turn_id] = turn.next_turn_id

    def clear(self) -> None:
        """Forget all of it."""
        for known in (self._by_request, self._by_end, self._by_response, self._continued):
            known.clear()

    def find(self, node: Node, reading: Reading) -> Place | None:
        """The newest one that ``node``'s request tries again, or goes on from unless another request did so before."""
        if not self._by_request:
            return None
        for turn in reversed(self._by_request.get((node.scope, reading.digest), ())):
            if turn.failed and self._fits(turn, node):
                start = reading.blocks[-1].start if reading.blocks else 0
                return Place(turn, start, turn.turn_id in self._continued.values(), retry=True)
        for turn, start in self._repeated(node, reading):
            following = self._continued.get(turn.turn_id)
            if following in (None, node.turn_id) and self._fits(turn, node):
                return Place(turn, start, following is not None)
        return None

    def continued(self, turn: SettledTurn, node: Node) -> None:
        """``node`` goes on from ``turn``, and nothing else does."""
        self._continued[turn.turn_id] = node.turn_id

    def _repeated(self, node: Node, reading: Reading) -> Iterator[tuple[SettledTurn, int]]:
        if reading.previous_id is not None:
            named = self._by_response.get((node.scope[0], reading.previous_id), ())
            yield from ((turn, 0) for turn in reversed(named) if not turn.failed)
        if reading.sequence is not None:
            for key in step_keys(reading.sequence):
                ends = self._by_end.get((node.scope, key), ())
                longest = sorted(ends, key=lambda item: -item[1].length)
                yield from ((turn, 0) for turn, end in longest if begins_with(reading.sequence, end))
            return
        for block in reversed(reading.blocks):
            found = self._by_request.get((node.scope, reading.prefixes[block.start]), ())
            said = _said_in(reading, block) if found else b""
            yield from ((turn, block.start) for turn in reversed(found) if turn.answer == said)

    def _fits(self, turn: SettledTurn, node: Node) -> bool:
        session, branch = turn.identity
        in_time = turn.end_ms - self._slack_ms <= node.start_ms <= turn.end_ms + self._timeout_ms
        same_agent = turn.api == node.family and turn.frame == _frame(node.tools, node.system)
        return in_time and same_agent and not Identity(session, branch).bars(node.identity)


def _said_in(reading: Reading, block: Block) -> bytes:
    calls = [event.text for event in reading.events[block.start : block.end] if event.kind is Kind.CALL]
    return _digest([block.text], sorted(calls))


def _frame(tools: frozenset[str], system: bytes) -> bytes:
    """Who offers the same tools is the same agent; without any, who says the same to begin with."""
    return _digest(sorted(tools), []) if tools else _digest([], [system.hex()])


def _digest(first: Iterable[str], second: Iterable[str]) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for mark, texts in ((b"\xfe", first), (b"\xff", second)):
        for text in texts:
            # No text has these bytes in its UTF-8.
            state.update(mark + text.encode("utf-8", "surrogatepass"))
    return state.digest()
