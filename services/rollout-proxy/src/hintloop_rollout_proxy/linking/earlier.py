"""Turns that earlier linkers settled, and how a request stands to them. Owns what is noted of a turn; links nothing.

A turn that is settled is no capture any more, so whoever links next cannot read it again. A note of it tells its
session, its place there, and digests of what was said; a request that repeats it word by word stands behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TypeVar

from hintloop_contract.messages import TurnNote

from hintloop_rollout_proxy.linking.events import Kind, Reading
from hintloop_rollout_proxy.linking.index import MAX_CANDIDATES
from hintloop_rollout_proxy.linking.nodes import Node, Scope
from hintloop_rollout_proxy.linking.normal_form import digest_of
from hintloop_rollout_proxy.linking.sequences import sequence_digest, step_keys

K = TypeVar("K")


class Standing(Enum):
    """How a request stands to a turn that an earlier linker settled."""

    CONTINUES = "continues"  # goes on from it
    REPEATS = "repeats"  # tries it again, or is another choice of it
    FORKS = "forks"  # holds its answer word by word, but something else goes on from it, or it is another agent's
    SIDE = "side"  # is about it


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands. ``start`` is the first event of the turn's answer in it, 0 where that is not looked for.

    ``known``: the linker that settled the turn said so itself.
    """

    note: TurnNote
    standing: Standing
    start: int = 0
    known: bool = False


def note_of(node: Node) -> TurnNote:
    """What is noted of a node as it is settled. It holds no words, and its size is bounded."""
    tenant, credential = node.scope
    before = node.parent if node.continues and not node.forked else None
    return TurnNote(
        turn_id=node.turn_id,
        tenant=tenant,
        credential=credential,
        api=node.family,
        session_id=node.session.session_id,
        turn_index=node.turn_index,
        segment=node.segment,
        num_turns=node.num_turns,
        session=_digest(node.identity.session or ""),
        branch=_digest(node.identity.branch),
        frame=_frame_of(node),
        tools=bool(node.tools),
        request=node.digest,
        answer=_answer(node.reply.text, node.reply.calls),
        ends=tuple((end.length, *end.key, end.digest) for end in node.sequence_ends),
        response=_digest(node.response_id or ""),
        failed=not node.whole,
        after=node.after if before is None else before.turn_id,
        next=None if node.next is None else node.next.node.turn_id,
        end_ms=node.end_ms,
    )


class EarlierTurns:
    """What earlier linkers noted, found by the requests that go on from it."""

    def __init__(self, timeout_ms: int, slack_ms: int, failed_slack_ms: int) -> None:
        """A request goes on from what ended ``timeout_ms`` before its arrival at most, and ``slack_ms`` after it."""
        self._timeout_ms = timeout_ms
        self._slack_ms = {False: slack_ms, True: failed_slack_ms}
        self._order: dict[str, int] = {}
        self._failed: dict[str, TurnNote] = {}
        self._by_next: dict[str, TurnNote] = {}
        self._next: dict[str, str] = {}
        self._repeated: set[str] = set()
        self._newest_try: dict[tuple[Scope, bytes, str], TurnNote] = {}
        self._answers: dict[tuple[Scope, bytes, bytes], deque[TurnNote]] = {}
        self._failures: dict[tuple[Scope, bytes], dict[str, TurnNote]] = {}
        self._lengths: dict[tuple[Scope, tuple[int, bytes]], set[int]] = {}
        self._ends: dict[tuple[Scope, int, bytes], deque[TurnNote]] = {}
        self._responses: dict[tuple[str, bytes], deque[TurnNote]] = {}

    def __len__(self) -> int:
        """Turns known."""
        return len(self._order)

    def add(self, notes: Iterable[TurnNote]) -> None:
        """Know these, in the order in which they were noted; of two notes of one turn the last holds."""
        last = {note.turn_id: note for note in notes}
        for note in last.values():
            self._add(note)

    def _add(self, note: TurnNote) -> None:
        scope = (note.tenant, note.credential)
        self._order[note.turn_id] = len(self._order)
        _put(self._answers, (scope, note.request, note.answer), note)
        for length, step, step_digest, digest in note.ends:
            self._lengths.setdefault((scope, (step, step_digest)), set()).add(length)
            _put(self._ends, (scope, length, digest), note)
        if note.response:
            _put(self._responses, (note.tenant, note.response), note)
        if note.failed:
            self._failed[note.turn_id] = note
            self._failures.setdefault((scope, note.request), {})[note.turn_id] = note
        tried = (scope, note.request, note.session_id)
        if tried in self._newest_try:
            self._repeat(self._newest_try[tried])
        self._newest_try[tried] = note
        if note.next is not None:
            self._by_next[note.next] = note
            self._continue(note.turn_id, note.next)
        if note.after is not None:
            self._continue(note.after, note.turn_id)

    def taken(self, place: Place, node: Node) -> None:
        """``node`` stands in ``place`` now, and nothing else will."""
        if place.standing is Standing.CONTINUES:
            self._continue(place.note.turn_id, node.turn_id)
        elif place.standing is Standing.REPEATS and place.note.failed:
            self._repeat(place.note)

    def _continue(self, turn_id: str, next_id: str) -> None:
        following = self._next.get(turn_id)
        if following is None or following in self._failed:
            self._next[turn_id] = next_id

    def _repeat(self, note: TurnNote) -> None:
        self._repeated.add(note.turn_id)
        self._failures.get(((note.tenant, note.credential), note.request), {}).pop(note.turn_id, None)

    def find(self, node: Node, reading: Reading) -> Place | None:
        """How ``node``'s request stands to the turn that is known to lead to it, or the newest that it repeats."""
        if not self._order:
            return None
        known = self._by_next.get(node.turn_id)
        if known is not None:
            return Place(known, Standing.CONTINUES, known=True)
        return self._as_another_try(node) or self._as_repeating(node, reading)

    def _as_another_try(self, node: Node) -> Place | None:
        if node.choices is not None:
            for note in self._at_response(node.scope[0], node.response_id):
                if note.request == node.digest:
                    return Place(note, Standing.REPEATS)
        fits = self._fitting(node)
        # Who failed first is the first to try again.
        failures = self._failures.get((node.scope, node.digest), {}).values()
        failed = next((note for note in islice(failures, MAX_CANDIDATES) if fits(note)), None)
        return None if failed is None else Place(failed, Standing.REPEATS)

    def _as_repeating(self, node: Node, reading: Reading) -> Place | None:
        fits = self._fitting(node)
        for notes, start in self._word_by_word(node, reading):
            ranked = sorted(notes, key=lambda note: self._rank(note, node), reverse=True)
            for note in filter(fits, ranked):
                following = self._next.get(note.turn_id)
                if following is None:
                    return Place(note, Standing.CONTINUES, start)
                if following in self._failed and following not in self._repeated:
                    return Place(self._failed[following], Standing.REPEATS)
            if ranked:
                aside = ranked[0].tools and not node.tools and reading.last_kind is Kind.USER
                is_side = aside and fits(ranked[0], any_frame=True)
                return Place(ranked[0], Standing.SIDE if is_side else Standing.FORKS, start)
        return None

    def _word_by_word(self, node: Node, reading: Reading) -> Iterator[tuple[Sequence[TurnNote], int]]:
        """Turns that the request repeats, the newest place first."""
        if reading.previous_id is not None:
            yield [note for note in self._at_response(node.scope[0], reading.previous_id) if not note.failed], 0
        elif reading.sequence is not None:
            for key in step_keys(reading.sequence):
                for length in sorted(self._lengths.get((node.scope, key), ()), reverse=True):
                    if length < len(reading.sequence):
                        yield self._ends.get((node.scope, length, sequence_digest(reading.sequence[:length])), ()), 0
        else:
            # Behind an older answer stands one that may come in late; the request waits for it and forks nothing.
            for block in reading.blocks[-1:]:
                events = reading.events[block.start : block.end]
                said = _answer(block.text, [event.text for event in events if event.kind is Kind.CALL])
                yield self._answers.get((node.scope, reading.prefixes[block.start], said), ()), block.start

    def _at_response(self, tenant: str, response_id: str | None) -> Sequence[TurnNote]:
        return self._responses.get((tenant, _digest(response_id or "")), ())

    def _rank(self, note: TurnNote, node: Node) -> tuple[bool, int]:
        """Of equals the one of the same session; else agents go on in the order in which they began."""
        same = bool(note.session) and note.session == _digest(node.identity.session or "")
        order = self._order[note.turn_id]
        return same, order if same else -order

    def _fitting(self, node: Node) -> Callable[..., bool]:
        """Whether a turn is of this agent, and recent enough."""
        session, branch = _digest(node.identity.session or ""), _digest(node.identity.branch)
        frame = _frame_of(node)

        def fits(note: TurnNote, *, any_frame: bool = False) -> bool:
            forks = bool(session and note.session and session != note.session)
            other_agent = bool(session) and session == note.session and branch != note.branch
            return (
                note.api == node.family
                and (any_frame or note.frame == frame)
                and not (forks or other_agent)
                and note.end_ms - self._slack_ms[note.failed] <= node.start_ms <= note.end_ms + self._timeout_ms
            )

        return fits


def _put(notes: dict[K, deque[TurnNote]], key: K, note: TurnNote) -> None:
    notes.setdefault(key, deque(maxlen=MAX_CANDIDATES)).append(note)


def _frame_of(node: Node) -> bytes:
    """Who offers the same tools is the same agent; without any, who says the same to begin with."""
    return digest_of(b"tools", *map(_encoded, sorted(node.tools))) if node.tools else digest_of(b"system", node.system)


def _answer(text: str, calls: Iterable[str]) -> bytes:
    return digest_of(*map(_encoded, (text, *sorted(calls))))


def _digest(text: str) -> bytes:
    """Digest of an id; empty for none."""
    return digest_of(_encoded(text)) if text else b""


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
