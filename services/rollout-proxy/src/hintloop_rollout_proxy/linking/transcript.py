"""Transcripts in a form in which they can be compared: units of what was said, in order, with running digests.

Compared are: user texts, assistant texts, tool calls (name and sorted arguments), tool results. White space is
collapsed. Ignored are ids, names, reasoning, cache marks and sampling fields. Leading system texts and the tools
form the frame. What one API calls a message is read in `messages`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """Who speaks in a unit."""

    SYSTEM = "S"
    USER = "U"
    ASSISTANT = "A"
    TOOL = "T"


@dataclass(frozen=True, slots=True)
class Unit:
    """What one speaker says at one place. ``calls`` are canonical tool calls; ``message`` indexes the request's
    messages (the last one, where several make one unit)."""

    kind: Kind
    text: str
    message: int
    calls: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is said."""
        return not self.text and not self.calls


@dataclass(frozen=True, slots=True)
class Said:
    """An answer in comparable form."""

    text: str
    calls: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is said."""
        return not self.text and not self.calls

    def echoed_by(self, unit: Unit) -> bool:
        """Whether ``unit`` repeats this answer. Text beside tool calls may have been left out by the agent."""
        if self.empty or unit.calls != self.calls:
            return False
        return unit.text == self.text or (bool(self.calls) and not unit.text)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A request's transcript. ``prefixes[i]`` is the digest of the first ``i`` units; ``frame`` that of the system
    texts and tools; ``messages`` are the request's own, as JSON."""

    units: tuple[Unit, ...]
    prefixes: tuple[bytes, ...]
    frame: bytes
    messages: tuple[msgspec.Raw, ...]

    @property
    def digest(self) -> bytes:
        """Digest of all units."""
        return self.prefixes[-1]

    def after_unit(self, index: int) -> bytes:
        """JSON array of every message after unit ``index``; after none of them for -1."""
        start = self.units[index].message + 1 if index >= 0 else 0
        return b"[" + b",".join(bytes(message) for message in self.messages[start:]) + b"]"


def collapse(text: str) -> str:
    """Text with every run of white space made one space, trimmed."""
    return " ".join(text.split())


def canonical_call(name: str, arguments: object) -> str:
    """A tool call as name and arguments in sorted order; arguments may be JSON text or already an object."""
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments) if arguments.strip() else {}
        except (msgspec.DecodeError, RecursionError):
            arguments = collapse(str(arguments))
    return name + msgspec.json.encode(arguments, order="sorted").decode()


def digest_of(*parts: bytes) -> bytes:
    """A digest of parts, each told from the next by its length."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def make_transcript(
    units: Sequence[Unit], systems: Sequence[str], tools: bytes, messages: Sequence[msgspec.Raw]
) -> Transcript:
    """Join neighbouring assistant units, leave empty ones out, and run the digests."""
    kept: list[Unit] = []
    for unit in units:
        if unit.empty:
            continue
        if unit.kind is Kind.ASSISTANT and kept and kept[-1].kind is Kind.ASSISTANT:
            text = collapse(f"{kept[-1].text} {unit.text}")
            kept[-1] = Unit(Kind.ASSISTANT, text, unit.message, kept[-1].calls + unit.calls)
        else:
            kept.append(unit)
    prefixes = [digest_of()]
    for unit in kept:
        calls = "\x00".join(unit.calls)
        prefixes.append(digest_of(prefixes[-1], unit.kind.encode(), unit.text.encode(), calls.encode()))
    frame = digest_of(digest_of(tools), *(text.encode() for text in systems))
    return Transcript(tuple(kept), tuple(prefixes), frame, tuple(messages))
