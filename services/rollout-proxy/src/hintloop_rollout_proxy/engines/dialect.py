"""What the hot path needs of an engine: rewrite a request, read an answer, hide what only we asked for.

Owns the interface and what both dialects do to a request; reading an answer is `reader`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from hintloop_contract.messages import VersionSpan

Fields = dict[str, msgspec.Raw]
"""A request's top-level members, their values still JSON text."""

ABSENT = msgspec.Raw(b"")
NULL = b"null"
TRUE = msgspec.Raw(b"true")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the client itself asked for; everything else that we ask for is hidden from it."""

    stream: bool = False
    logprobs: bool = False
    token_ids: bool = False
    prompt_token_ids: bool = False
    meta_info: bool = False
    usage: bool = False
    sglext_input: bool = False
    sglext_output: bool = False


@dataclass(slots=True)
class Answer:
    """One choice of an answer as it was seen so far. ``response_ids`` and ``logprobs`` are of equal length T
    when the engine behaved; nothing here is checked."""

    message: dict[str, Any] = field(default_factory=lambda: {"role": "assistant", "content": None})
    message_json: bytes | None = None
    response_id: str | None = None
    finish_reason: str | None = None
    usage_completion_tokens: int | None = None
    prompt_ids: list[int] | None = None
    response_ids: list[int] | None = None
    logprobs: list[float | None] | None = None
    spans: tuple[VersionSpan, ...] = ()
    finished: bool = False
    """The whole answer arrived (``[DONE]``, or the whole body)."""
    fault: tuple[str, str] | None = None
    """What of the answer could not be read: a ``DropReason`` and a detail; the first one found."""
    error: str | None = None
    """An error that the engine reported inside the answer, or what could not be read of it."""

    @property
    def whole(self) -> bool:
        """Whether nothing of it is outstanding: it ended, or its last token and the usage behind it were seen."""
        return self.finished or (self.finish_reason is not None and self.usage_completion_tokens is not None)

    def note_fault(self, reason: str, detail: str) -> None:
        """Remember the first thing that could not be read."""
        if self.fault is None:
            self.fault = (reason, detail)

    def assistant_json(self) -> bytes | None:
        """The assistant message as the client received it, or ``None`` when none was begun."""
        if self.message_json is not None:
            return self.message_json
        message = dict(self.message)
        if "tool_calls" in message:
            message["tool_calls"] = [call for _, call in sorted(message["tool_calls"].items())]
        return msgspec.json.encode(message)


class Reader(Protocol):
    """Reads one answer and gives back what the client may see of it."""

    answer: Answer

    def event(self, data: bytes) -> bytes | None:
        """One server-sent event's JSON; the same object when unchanged, ``None`` when the client gets nothing.

        Raises:
            msgspec.DecodeError: the event is not JSON of the expected shape.
        """
        ...

    def body(self, data: bytes) -> bytes:
        """A whole non-streaming body; raises like :meth:`event`."""
        ...

    def hide(self, data: bytes) -> bytes | None:
        """What the client may see of JSON that could not be read; ``None`` when that cannot be told either."""
        ...


class Dialect(Protocol):
    """How one engine is asked for exact token ids and log-probabilities."""

    name: str
    tempered_space: str
    """The ``behaviour_space`` of this engine when its log-probabilities are not those of temperature 1."""

    def wishes(self, fields: Fields, headers: Mapping[bytes, bytes]) -> Wishes:
        """What the client asked for itself."""
        ...

    def rewrite(self, fields: Fields, wishes: Wishes) -> dict[str, str]:
        """Ask for ids, log-probabilities and usage in place; returns headers to add."""
        ...

    def reader(self, wishes: Wishes, public_model: str) -> Reader:
        """A reader for one answer."""
        ...


def truthy(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Whether a member is present and neither false, null, 0 nor empty."""
    raw = bytes(fields.get(name, ABSENT)).strip()
    return raw not in (b"", b"false", b"null", b"0", b'""', b"[]", b"{}")


def stream_options(fields: Fields) -> dict[str, msgspec.Raw]:
    """``stream_options`` as members; empty when absent or not an object (the engine will say so)."""
    try:
        return msgspec.json.decode(bytes(fields.get("stream_options", ABSENT)) or b"{}", type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return {}


def ask_for_usage(fields: Fields) -> None:
    """Ask for the final usage chunk of a stream; per-chunk usage would be news to a client that asked for none."""
    options = stream_options(fields)
    if not truthy(options, "include_usage"):
        options.pop("continuous_usage_stats", None)
    options["include_usage"] = TRUE
    fields["stream_options"] = msgspec.Raw(msgspec.json.encode(options))
