"""What a translated API gives the handler: a chat completion to ask, and the way back for its answer.

Owns the interface. Translations are pure: no network, no clock; what they remember is one request's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

Fields = dict[str, msgspec.Raw]
"""A request's top-level members, their values still JSON text."""


class Translation(Protocol):
    """One request of a translated API on its way. The handler calls ``body``, or ``begin`` … ``event`` … ``end``."""

    fields: Fields
    """The chat completion to ask in its place, ``stream`` included."""
    response_id: str
    """The id of the answer that the agent sees."""

    def body(self, chat: bytes) -> bytes:
        """A whole chat completion (JSON, as an unmodified client would have seen it) as this API's body."""
        ...

    def begin(self) -> bytes:
        """Server-sent events due before the engine's first chunk; may be empty."""
        ...

    def event(self, chunk: bytes) -> bytes:
        """Server-sent events for one chat chunk (JSON without ``data:``); may be empty."""
        ...

    def end(self) -> bytes:
        """Server-sent events that end the answer, after the engine's ``[DONE]``."""
        ...

    def error(self, status: int, body: bytes) -> bytes:
        """An upstream error's body in this API's form; the status stays."""
        ...

    def broken(self, detail: str) -> bytes:
        """Server-sent events for an answer that broke off in its middle."""
        ...


class UntranslatableError(ValueError):
    """The request cannot be translated faithfully: it goes to the engine's own endpoint, served and not trained."""


@dataclass(frozen=True, slots=True)
class TranslatedApi:
    """One translated API: ``translate(fields, tenant)`` raises ``UntranslatableError`` or one of the proxy's own
    refusals; ``finish(translation, tenant)`` is called when a whole answer was given."""

    name: str
    translate: Callable[[Fields, str], Awaitable[Translation]]
    finish: Callable[[Any, str], Awaitable[None]] | None = None
