"""Messages of other APIs as chat messages, for next states. Owns shapes; compares nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec


def parts_of(content: Any) -> list[dict[str, Any]]:
    """The parts of a content of any shape; a string is one text part."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return []
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in content if _is_part(part)]


def _is_part(part: Any) -> bool:
    return isinstance(part, str | dict)


def text_of(content: Any) -> str:
    """The text of a content of any shape, parts on lines of their own; parts other than text have none."""
    return "\n".join(part["text"] for part in parts_of(content) if isinstance(part.get("text"), str))


def to_chat(raws: Sequence[msgspec.Raw]) -> bytes:
    """Items of the Messages or Responses API (JSON each) as a JSON array of chat messages."""
    messages: list[dict[str, Any]] = []
    for raw in raws:
        item = msgspec.json.decode(raw)
        if isinstance(item, dict):
            messages.extend(_chat_messages(item))
    return msgspec.json.encode(messages)


def without_instruction(next_state: bytes) -> bytes:
    """A next state without the user's message at its end, by which a side call asked for something of its own."""
    messages = msgspec.json.decode(next_state)
    if messages and isinstance(messages[-1], dict) and messages[-1].get("role") == "user":
        messages = messages[:-1]
    return msgspec.json.encode(messages)


def _chat_messages(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind, role = item.get("type"), item.get("role")
    if role is not None and kind in (None, "message"):
        yield from _of_message(str(role), item.get("content"))
    elif isinstance(kind, str) and kind.endswith("_output"):
        yield {"role": "tool", "tool_call_id": str(item.get("call_id") or ""), "content": text_of(item.get("output"))}
    elif isinstance(kind, str) and kind.endswith("_call"):
        call_id = str(item.get("call_id") or item.get("id") or "")
        yield _assistant("", [_call(call_id, item.get("name") or kind, call_arguments(item))])


def call_arguments(item: dict[str, Any]) -> Any:
    """What a call item of the Responses API asks, whatever kind of call it is."""
    for name in ("arguments", "input", "action"):
        if name in item:
            return item[name]
    return {key: value for key, value in item.items() if key not in ("id", "type", "status", "call_id")}


def _of_message(role: str, content: Any) -> Iterator[dict[str, Any]]:
    parts = parts_of(content)
    if role == "assistant":
        calls = [
            _call(str(part.get("id") or ""), part.get("name"), part.get("input", {}))
            for part in parts
            if str(part.get("type", "")).endswith("tool_use")
        ]
        yield _assistant(text_of(content), calls)
        return
    for part in parts:
        if str(part.get("type", "")).endswith("tool_result"):
            text = text_of(part.get("content"))
            yield {"role": "tool", "tool_call_id": str(part.get("tool_use_id") or ""), "content": text}
    text = text_of(content)
    if text:
        yield {"role": role, "content": text}


def _assistant(text: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = calls
    return message


def _call(call_id: str, name: Any, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return {"id": call_id, "type": "function", "function": {"name": str(name or ""), "arguments": text}}
