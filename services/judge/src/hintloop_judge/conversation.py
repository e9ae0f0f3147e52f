"""What a judge looks at: the request, the answer, and everything that came after it. No judging here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hintloop_contract.messages import TurnRecord

from hintloop_judge.errors import RecordError

Message = dict[str, Any]

#: Roles whose words come from a person, and from the agent's tools.
USER_ROLES = ("user",)
TOOL_ROLES = ("tool", "function")

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One answer in its place. ``next_state``: every message after the answer, in order, with roles."""

    messages: tuple[Message, ...]
    answer: Message
    next_state: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


def read_exchange(record: TurnRecord) -> Exchange:
    """The exchange that a turn's record holds.

    Raises:
        RecordError: a field is no JSON of the right kind.
    """
    answer = _json(record.turn_id, "answer", record.answer)
    if not isinstance(answer, dict):
        raise RecordError(f"turn {record.turn_id}: answer must be a JSON object, found {type(answer).__name__}")
    return Exchange(
        messages=_objects(record.turn_id, "messages", record.messages),
        answer=answer,
        next_state=_objects(record.turn_id, "next_state", record.next_state),
        tools=_objects(record.turn_id, "tools", record.tools or b"[]"),
    )


def _json(turn_id: str, name: str, raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise RecordError(f"turn {turn_id}: {name} is not JSON: {error}") from error
    except RecursionError:
        raise RecordError(f"turn {turn_id}: {name} nests too deep to be read") from None


def _objects(turn_id: str, name: str, raw: bytes) -> tuple[Message, ...]:
    value = _json(turn_id, name, raw)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RecordError(f"turn {turn_id}: {name} must be a JSON array of objects")
    return tuple(value)


def message_text(message: Message) -> str:
    """Text of a message, whether its content is a string or a list of parts; other parts are named in brackets."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    return "\n".join(text for text in map(_part_text, content) if text)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return json.dumps(part, ensure_ascii=False)
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if part.get("type") == "tool_result":
        return ""
    return f"[{part.get('type', 'unknown')} part]"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool gave back; ``is_error`` is the agent's own flag, when it set one; ``name`` the tool's, if known."""

    text: str
    is_error: bool | None = None
    name: str | None = None


def tool_results(messages: tuple[Message, ...], names: Mapping[str, str] | None = None) -> list[ToolResult]:
    """Results of all tools in ``messages``: tool messages, and ``tool_result`` parts inside user messages.

    ``names``: tools by the ids of their calls, as :func:`call_names` has them.
    """
    return [
        ToolResult(message_text(part), _flag(part), tool_name(part, names or {})) for part in result_parts(messages)
    ]


def result_parts(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """The tool messages and ``tool_result`` parts of ``messages``, in order."""
    parts = []
    for message in messages:
        if message.get("role") in TOOL_ROLES:
            parts.append(message)
        content = message.get("content")
        parts += [part for part in (content if isinstance(content, list) else ()) if is_result_part(part)]
    return parts


def is_result_part(part: Any) -> bool:
    """Whether a part of a message is what a tool gave back."""
    return isinstance(part, dict) and part.get("type") == "tool_result"


def call_names(answer: Message) -> dict[str, str]:
    """Tools that the answer calls, by the id of the call: chat's ``tool_calls``, and ``tool_use`` parts."""
    names: dict[str, str] = {}
    for held in (answer.get("tool_calls"), answer.get("content")):
        for call in held if isinstance(held, list) else ():
            if not isinstance(call, dict):
                continue
            function = call.get("function")
            name = function.get("name") if isinstance(function, dict) else call.get("name")
            if isinstance(call.get("id"), str) and isinstance(name, str):
                names[call["id"]] = name
    return names


def tool_name(part: dict[str, Any], names: Mapping[str, str]) -> str | None:
    """The tool whose output ``part`` is, by the call it answers or by its own word."""
    call = part.get("tool_call_id") or part.get("tool_use_id")
    name = names.get(call) if isinstance(call, str) else None
    given = part.get("name")
    return name or (given if isinstance(given, str) else None)


def _flag(holder: dict[str, Any]) -> bool | None:
    value = holder.get("is_error")
    if isinstance(value, bool):
        return value
    return True if holder.get("status") == "error" else None


def has_lone_surrogate(text: str) -> bool:
    """Whether the text holds half a character, which JSON can write (`"\\ud800"`) and nothing can store."""
    return _SURROGATE.search(text) is not None


def user_texts(messages: tuple[Message, ...]) -> list[str]:
    """What the user wrote, one text a message."""
    return [text for m in messages if m.get("role") in USER_ROLES and (text := message_text(m)).strip()]
