"""From the messages of a Messages request to chat messages. Owns the shapes of blocks; knows no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

Message = dict[str, Any]
Report = Callable[[str], None]
"""Told of what has no chat form: a strict reader raises, a lenient one goes on."""

#: A line that one agent puts before its system text; it changes with every request and is meant for a billing system.
BILLING = "x-anthropic-billing-header"


def read_system(system: Any, report: Report) -> list[Message]:
    """The top-level ``system`` as a message, or none when it says nothing."""
    if system is None:
        return []
    texts = [text for text in _texts(system, "system", report) if text and not text.startswith(BILLING)]
    return [{"role": "system", "content": "\n".join(texts)}] if texts else []


def read_messages(given: Any, report: Report) -> list[Message]:
    """The chat messages of ``messages``; results of tools come before the words beside them, as the vendor has it.

    Args:
        given: the member's value.
        report: told of every message and block without a chat form.
    """
    if not isinstance(given, list):
        report(f"messages of {type(given).__name__}")
        return []
    messages: list[Message] = []
    for message in given:
        role = message.get("role") if isinstance(message, dict) else None
        if role == "system":
            messages += read_system(message.get("content"), report)
        elif role == "user":
            messages += _user(message.get("content"), report)
        elif role == "assistant":
            messages.append(_assistant(message.get("content"), report))
        else:
            report(f"a message of role {role!r}")
    return messages


def _texts(content: Any, where: str, report: Report) -> list[str]:
    if isinstance(content, str):
        return [content]
    texts = []
    for block in _blocks(content, where, report):
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        else:
            report(f"a block of type {block.get('type')!r} in {where}")
    return texts


def _blocks(content: Any, where: str, report: Report) -> list[dict[str, Any]]:
    if content is None:
        return []
    if not isinstance(content, list):
        report(f"{where} of {type(content).__name__}")
        return []
    blocks = [block for block in content if isinstance(block, dict)]
    if len(blocks) < len(content):
        report(f"a block in {where} that is no object")
    return blocks


def _user(content: Any, report: Report) -> list[Message]:
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    blocks = _blocks(content, "user content", report)
    results = [_result(block, report) for block in blocks if block.get("type") == "tool_result"]
    texts = _texts([block for block in blocks if block.get("type") != "tool_result"], "user content", report)
    if not texts:
        return results if results else [{"role": "user", "content": ""}]
    parts = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
    return [*results, {"role": "user", "content": parts}]


def _result(block: dict[str, Any], report: Report) -> Message:
    identifier, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(identifier, str):
        report("a tool_result without tool_use_id")
        identifier = ""
    text = "" if content is None else "\n".join(_texts(content, "a tool_result", report))
    message: Message = {"role": "tool", "tool_call_id": identifier, "content": text}
    if block.get("is_error") is True:
        # Engines leave the member out of the prompt, as on their own endpoints; a judge reads it.
        message["is_error"] = True
    return message


def _assistant(content: Any, report: Report) -> Message:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in _blocks(content, "assistant content", report):
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            calls += _call(block, report)
        elif kind != "redacted_thinking":
            # What another vendor redacted cannot be read by anyone here; such a block says nothing.
            report(f"a block of type {kind!r} in assistant content")
    message: Message = {"role": "assistant", "content": "".join(texts) if texts else None}
    if thoughts:
        # vLLM reads the one name, SGLang the other.
        message["reasoning"] = message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    elif not texts:
        message["content"] = ""
    return message


def _call(block: dict[str, Any], report: Report) -> list[dict[str, Any]]:
    name, identifier = block.get("name"), block.get("id")
    if not isinstance(name, str) or not isinstance(identifier, str):
        report("a tool_use without name and id")
        return []
    given = block.get("input")
    arguments = msgspec.json.encode(given if given is not None else {}).decode()
    return [{"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}]
