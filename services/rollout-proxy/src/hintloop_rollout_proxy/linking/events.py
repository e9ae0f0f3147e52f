"""What a request says, in comparable form: events in order, with running digests. Owns no API's syntax."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from hintloop_rollout_proxy.linking.normal_form import (
    argument_texts,
    beginning_of,
    call_key,
    canonical_call,
    collapse,
    passages_of,
    without_label,
)


class Kind(StrEnum):
    """Who speaks in an event."""

    USER = "U"
    ANSWER = "A"
    CALL = "C"
    RESULT = "T"


SPOKEN = (Kind.ANSWER, Kind.CALL)
"""Kinds that come from the model."""


@dataclass(frozen=True, slots=True)
class Event:
    """One content part. ``text`` is collapsed (of a call: name and sorted arguments); ``item`` indexes the request's
    messages; ``mark`` is the part of an id that we minted for the answer that is echoed here."""

    kind: Kind
    text: str
    item: int
    call_id: str = ""
    name: str = ""
    mark: str = ""
    leads: tuple[str, ...] = ()
    """Of a user's text of several paragraphs: the first, and all but the last. Agents append reminders."""

    @property
    def quotable(self) -> list[str]:
        """The forms in which an agent may quote a user's text: whole, its leads, each without its label."""
        forms = (self.text, *self.leads)
        return [form for form in dict.fromkeys([*forms, *(without_label(form) for form in forms)]) if form]


@dataclass(frozen=True, slots=True)
class Block:
    """Events ``[start, end)``: what the model said between two turns of others. ``text`` joins its texts."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in comparable form. ``calls`` are canonical, ``call_ids`` normalised, ``arguments`` their texts."""

    text: str = ""
    calls: tuple[str, ...] = ()
    call_ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    begin: str = ""
    passages: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is said."""
        return not self.text and not self.calls

    @property
    def telling(self) -> bool:
        """Whether it says enough to be recognised without its context."""
        return (self.begin.count(" ") > 3 and len(self.text) > 11) or any(len(call) > 16 for call in self.calls)


def make_reply(text: str, calls: Sequence[tuple[str, str, object]]) -> Reply:
    """A reply from its text and its calls ``(id, name, arguments)``."""
    text = collapse(text)
    return Reply(
        text=text,
        calls=tuple(canonical_call(name, arguments) for _, name, arguments in calls),
        call_ids=tuple(key for call_id, _, _ in calls if (key := call_key(call_id))),
        names=tuple(name for _, name, _ in calls),
        arguments=tuple(found for _, _, arguments in calls for found in argument_texts(arguments)),
        begin=beginning_of(text),
        passages=passages_of(text),
    )


@dataclass(frozen=True, slots=True)
class BodyIds:
    """Ids inside a body, by strength: ``session`` names a conversation, ``weak`` ones narrow a choice at most."""

    session: str | None = None
    native: str | None = None
    weak: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Reading:
    """A request in comparable form. ``prefixes[i]`` is the digest of the first ``i`` events, ``hashes[i]`` the hash of
    event ``i``; ``after(item)`` gives every message after ``item`` as a JSON array of chat messages."""

    events: tuple[Event, ...]
    prefixes: tuple[bytes, ...]
    hashes: array[int]
    blocks: tuple[Block, ...]
    tools: frozenset[str]
    system: bytes
    after: Callable[[int], bytes]
    ids: BodyIds = BodyIds()
    previous_id: str | None = None
    max_tokens: int | None = None
    sequence: bytes | None = None
    """The whole prompt of an API without messages: UTF-8 text, or int32 ids after a zero byte."""

    @property
    def digest(self) -> bytes:
        """Digest of all events."""
        return self.prefixes[-1]

    @property
    def last_kind(self) -> Kind | None:
        """Who spoke last."""
        return self.events[-1].kind if self.events else None

    def tail(self) -> tuple[Event, ...]:
        """The user's texts at the end."""
        start = len(self.events)
        while start and self.events[start - 1].kind is Kind.USER:
            start -= 1
        return self.events[start:]

    def texts(self, *kinds: Kind) -> str:
        """All texts of some kinds, joined."""
        return " ".join(event.text for event in self.events if event.kind in kinds)


@dataclass(slots=True)
class ReadingBuilder:
    """Collects what a reader finds, and makes the reading."""

    events: list[Event] = field(default_factory=list)
    systems: list[str] = field(default_factory=list)

    def user(self, text: str, item: int) -> None:
        """A user's words."""
        first, _, more = text.partition("\n\n")
        leads = dict.fromkeys(map(collapse, (first, text.rpartition("\n\n")[0]))) if more else ()
        self._add(Event(Kind.USER, collapse(text), item, leads=tuple(lead for lead in leads if lead)))

    def answer(self, text: str, item: int, mark: str = "") -> None:
        """A model's words; a bare ``mark`` refers to them."""
        event = Event(Kind.ANSWER, collapse(text), item, mark=mark)
        if event.text or mark:
            self.events.append(event)

    def call(self, call_id: str, name: str, arguments: object, item: int, mark: str = "") -> None:
        """A model's tool call."""
        self._add(Event(Kind.CALL, canonical_call(name, arguments), item, call_key(call_id), name, mark))

    def result(self, call_id: str, text: str, item: int) -> None:
        """A tool's result, which may be empty."""
        self.events.append(Event(Kind.RESULT, collapse(text), item, call_key(call_id)))

    def system(self, text: str) -> None:
        """A system or developer text; after the first event it belongs to nothing that is compared."""
        if not self.events and text:
            self.systems.append(collapse(text))

    def _add(self, event: Event) -> None:
        if event.text:
            self.events.append(event)

    def prefixes(self, *, seed: bytes = b"") -> tuple[bytes, ...]:
        """Running digests. Neighbours of one kind count as one text, so that parts and strings agree."""
        state = hashlib.blake2b(seed, digest_size=16)
        found, before = [state.digest()], ""
        for event in self.events:
            # No text has this byte in its UTF-8.
            state.update(b" " if event.kind == before else b"\xff%b\xff" % event.kind.encode())
            state.update(event.text.encode("utf-8", "surrogatepass"))
            found.append(state.copy().digest())
            before = event.kind
        return tuple(found)

    def hashes(self) -> array[int]:
        """A 64-bit hash an event, int64 ``[len(events)]``."""
        return array("q", [hash((event.kind, event.text)) for event in self.events])

    def blocks(self) -> tuple[Block, ...]:
        """Runs of what the model said."""
        found: list[Block] = []
        start = None
        for position, event in enumerate([*self.events, None]):
            spoken = event is not None and event.kind in SPOKEN
            if spoken and start is None:
                start = position
            elif not spoken and start is not None:
                texts = [e.text for e in self.events[start:position] if e.kind is Kind.ANSWER and e.text]
                found.append(Block(start, position, " ".join(texts)))
                start = None
        return tuple(found)
