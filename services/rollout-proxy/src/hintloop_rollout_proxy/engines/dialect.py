"""What the hot path needs of an engine: rewrite a request, read an answer, hide what only we asked for.

Owns the interface and what both dialects do to a request; reading an answer is `reader` and its like.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from hintloop_rollout_proxy.engines.answer import Answer
from hintloop_rollout_proxy.engines.quick import QuickWay

Fields = dict[str, msgspec.Raw]
"""A request's top-level members, their values still JSON text."""
Headers = Mapping[bytes, bytes]

CHAT, COMPLETIONS, GENERATE = "chat_completions", "completions", "generate"
"""The engine APIs whose answers can carry exact ids, as ``Capture.api`` names them."""

ABSENT = msgspec.Raw(b"")
NULL = b"null"
RAW_NULL = msgspec.Raw(NULL)
TRUE = msgspec.Raw(b"true")


class Reader(Protocol):
    """Reads one answer and gives back what the client may see of it."""

    answer: Answer
    quick: QuickWay | None
    """How the events are read that follow the template of one before, if there is a way; it may change with any."""

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

    def ended(self) -> None:
        """The engine closed its answer."""
        ...


class Hidden(msgspec.Struct, frozen=True):
    """What the client did not ask for. In an answer that says ``"name":null`` unasked a member is nulled, else
    removed; ``choice`` is what stands in each choice, ``reply`` what stands beside them."""

    logprobs: bool = False
    nulled: bool = False
    choice: tuple[str, ...] = ()
    reply: tuple[str, ...] = ()
    sglext: tuple[str, ...] = ()
    """What of a ``sglext`` member that the client asked for it did not ask for."""
    usage: bool = False
    """Whether a chunk of nothing but usage is ours."""
    stamped: bool = False
    """Whether, without usage, the engine would have put its ``system_fingerprint`` on chunks that end a choice."""
    bare_deltas: bool = False
    """Whether a chunk whose delta says nothing exists only because we asked for more."""


NOTHING = Hidden()


class Extension(msgspec.Struct, frozen=True):
    """How to ask for more: headers to add to the request, and what to hide of the answer."""

    hidden: Hidden
    headers: tuple[tuple[str, str], ...] = ()


class Dialect(Protocol):
    """How one engine is asked for exact token ids and log-probabilities."""

    name: str
    tempered_space: str
    """The ``behaviour_space`` of this engine when its log-probabilities are not those of temperature 1."""

    def adapted(self, model: str, adapter: str) -> str:
        """The name that asks for ``model`` under ``adapter``."""
        ...

    def extend(self, api: str, fields: Fields, headers: Headers) -> Extension | None:
        """Ask for ids, log-probabilities and usage by changing ``fields``; ``None`` when the engine has no such API."""
        ...


def truthy(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Whether a member is present and neither false, null, 0 nor empty."""
    raw = bytes(fields.get(name, ABSENT)).strip()
    return raw not in (b"", b"false", b"null", b"0", b'""', b"[]", b"{}")


def given(fields: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Whether a member is present and not null."""
    return bytes(fields.get(name, ABSENT)).strip() not in (b"", NULL)


def wants_usage(fields: Fields) -> bool:
    """Whether a stream's client asked for its usage."""
    return "stream_options" in fields and truthy(stream_options(fields), "include_usage")


def stream_options(fields: Fields) -> dict[str, msgspec.Raw]:
    """``stream_options`` as members; empty when absent or not an object (the engine will say so)."""
    try:
        return msgspec.json.decode(fields.get("stream_options", b"{}"), type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return {}


def ask_for_usage(fields: Fields) -> None:
    """Ask for the final usage chunk of a stream; per-chunk usage would be news to a client that asked for none."""
    options = stream_options(fields)
    if not truthy(options, "include_usage"):
        options.pop("continuous_usage_stats", None)
    options["include_usage"] = TRUE
    fields["stream_options"] = msgspec.Raw(msgspec.json.encode(options))
