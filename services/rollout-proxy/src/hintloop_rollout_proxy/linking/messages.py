"""Reads requests and answers of the chat-completions and messages APIs into transcripts.

Contents may be a string, null, or a list of parts; arguments a JSON text or an object. A later API adds a reader here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from hintloop_rollout_proxy.linking.transcript import (
    Kind,
    Said,
    Transcript,
    Unit,
    canonical_call,
    collapse,
    make_transcript,
)


class _Request(msgspec.Struct):
    messages: list[msgspec.Raw]
    system: Any = None
    tools: list[Any] | None = None


_request_decoder = msgspec.json.Decoder(_Request)


def text_of(content: Any) -> str:
    """Collapsed text of a content of any shape; parts other than text have none."""
    if isinstance(content, str):
        return collapse(content)
    if isinstance(content, list):
        return collapse("\n".join(_part_text(part) for part in content))
    return ""


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return ""


def _chat_units(role: str, message: dict[str, Any], index: int) -> Iterator[Unit]:
    content = message.get("content")
    if role == "assistant":
        calls = []
        for call in message.get("tool_calls") or []:
            function = call.get("function") or {}
            calls.append(canonical_call(str(function.get("name", "")), function.get("arguments", "")))
        yield from _assistant(content, calls, index)
    elif role in ("tool", "function"):
        yield Unit(Kind.TOOL, text_of(content), index)
    else:
        # A message of the messages API may hold tool results and words; the results come first.
        parts = content if isinstance(content, list) else []
        results = [part for part in parts if isinstance(part, dict) and part.get("type") == "tool_result"]
        for part in results:
            yield Unit(Kind.TOOL, text_of(part.get("content")), index)
        yield Unit(Kind.USER, text_of(content), index)


def _assistant(content: Any, calls: list[str], index: int) -> Iterator[Unit]:
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and part.get("type") == "tool_use":
            calls.append(canonical_call(str(part.get("name", "")), part.get("input", {})))
    yield Unit(Kind.ASSISTANT, text_of(content), index, tuple(calls))


def read_transcript(request: bytes) -> Transcript:
    """The transcript of a request body.

    Raises:
        msgspec.DecodeError: the body is no request with messages.
        ValueError: a message is not of a known shape.
    """
    document = _request_decoder.decode(request)
    systems = [text_of(document.system)] if document.system else []
    units: list[Unit] = []
    for index, raw in enumerate(document.messages):
        message = msgspec.json.decode(raw)
        if not isinstance(message, dict):
            raise ValueError(f"messages[{index}] is not an object")
        role = str(message.get("role", ""))
        if role in ("system", "developer"):
            text = text_of(message.get("content"))
            if units:
                units.append(Unit(Kind.SYSTEM, text, index))
            else:
                systems.append(text)
            continue
        units.extend(_chat_units(role, message, index))
    tools = msgspec.json.encode(document.tools or [], order="sorted")
    return make_transcript(units, systems, tools, document.messages)


def read_answer(answer: bytes | None) -> Said:
    """A captured assistant message in comparable form; an absent one says nothing."""
    if answer is None:
        return Said("")
    message = msgspec.json.decode(answer)
    if not isinstance(message, dict):
        raise ValueError(f"the answer is no message but {message!r:.40}")
    unit = next(_chat_units("assistant", message, 0))
    return Said(unit.text, unit.calls)


TranscriptReader = Callable[[bytes], Transcript]
READERS: dict[str, TranscriptReader] = {"chat_completions": read_transcript, "messages": read_transcript}
