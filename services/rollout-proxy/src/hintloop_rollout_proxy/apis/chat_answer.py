"""Reads chat completions, whole or in chunks, for the translated APIs. Owns their shape on both engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec


class Function(msgspec.Struct):
    """A called function; a delta carries its name once and its arguments piece by piece."""

    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    """A tool call, or a delta of one."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Said(msgspec.Struct):
    """A message, or a delta of one. Reasoning is ``reasoning`` on vLLM, ``reasoning_content`` on SGLang."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None


class TokenLogprobs(msgspec.Struct):
    """Log-probabilities of a choice; entries pass as they are."""

    content: list[dict[str, Any]] | None = None


class Choice(msgspec.Struct):
    """One choice. The stop string that was met is ``stop_reason`` on vLLM, ``matched_stop`` on SGLang."""

    index: int = 0
    message: Said | None = None
    delta: Said | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    matched_stop: Any = None
    logprobs: TokenLogprobs | None = None

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, or ``None``."""
        for found in (self.stop_reason, self.matched_stop):
            if isinstance(found, str):
                return found
        return None


class PromptDetails(msgspec.Struct):
    """Of the prompt's tokens, those found in the engine's cache."""

    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    """Of the answer's tokens, those of reasoning."""

    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    """Token counts of a chat completion."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    reasoning_tokens: int | None = None

    @property
    def cached(self) -> int:
        """Prompt tokens found in the cache."""
        details = self.prompt_tokens_details
        return (details.cached_tokens or 0) if details is not None else 0

    @property
    def generated(self) -> int:
        """Tokens of the answer."""
        return self.completion_tokens or 0

    @property
    def reasoned(self) -> int:
        """Tokens of reasoning, as far as the engine tells."""
        details = self.completion_tokens_details
        return (details.reasoning_tokens if details is not None else None) or self.reasoning_tokens or 0


class Chat(msgspec.Struct):
    """A chat completion, or a chunk of one; ``error`` stands in place of the rest when the engine gave up."""

    model: str = ""
    created: float = 0
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class Kind(Enum):
    """What a piece of an answer is part of."""

    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of an answer; ``call`` is set for calls: which one, and what is new of it."""

    kind: Kind
    text: str
    call: Call | None = None


_decoder = msgspec.json.Decoder(Chat)


def read_chat(data: bytes) -> Chat:
    """A chat completion or a chunk.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _decoder.decode(data)


def pieces(said: Said | None) -> Iterator[Piece]:
    """What a message or a delta says, in the order in which it was generated; what is empty is left out."""
    if said is None:
        return
    reasoning = said.reasoning or said.reasoning_content
    if reasoning:
        yield Piece(Kind.REASONING, reasoning)
    text = said.content or said.refusal
    if text:
        yield Piece(Kind.TEXT, text)
    for position, call in enumerate(said.tool_calls or ()):
        if call.index is None:
            call.index = position
        arguments = (call.function.arguments if call.function is not None else None) or ""
        yield Piece(Kind.CALL, arguments, call)


@dataclass(frozen=True, slots=True)
class UpstreamError:
    """What an engine, or the proxy in its place, said was wrong."""

    message: str
    kind: str | None = None
    code: Any = None
    param: str | None = None
    wrapped: bool = False
    """Whether it came as OpenAI writes it: an ``error`` object with a message."""


def read_error(body: bytes) -> UpstreamError:
    """An error body of either engine: ``{"error": {…}}``, ``{"object": "error", …}``, ``{"detail": …}`` or text."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return UpstreamError(body[:2000].decode(errors="replace").strip() or "the engine gave no reason")
    return error_of(document)


def error_of(document: Any) -> UpstreamError:
    """Like :func:`read_error`, of a value."""
    wrapped = False
    if isinstance(document, dict) and isinstance(document.get("error"), dict | str):
        document = document["error"]
        wrapped = isinstance(document, dict) and isinstance(document.get("message"), str)
    if not isinstance(document, dict):
        return UpstreamError(_text(document))
    param = document.get("param")
    return UpstreamError(
        message=_text(document.get("message", document.get("detail", document))),
        kind=document["type"] if isinstance(document.get("type"), str) else None,
        code=document.get("code"),
        param=param if isinstance(param, str) else None,
        wrapped=wrapped,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def sse(kind: str, payload: dict[str, Any]) -> bytes:
    """One server-sent event, as both vendors write them."""
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(payload) + b"\n\n"
