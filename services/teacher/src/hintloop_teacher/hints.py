"""Where the hint goes: behind the last text part of the last user message. Nothing else is touched."""

from __future__ import annotations

from typing import Any

from hintloop_teacher.errors import NoHintPlaceError

Message = dict[str, Any]
_TEXT_PARTS = ("text", "input_text")


def hint_block(hint_format: str, hint: str) -> str:
    """``hint_format`` with its one ``{hint}`` filled in; braces anywhere else stay as they are."""
    before, _, after = hint_format.partition("{hint}")
    return before + hint + after


def with_hint(messages: list[Message], block: str) -> list[Message]:
    """The messages with ``block`` behind the last text part of the last user message; the input stays as it is.

    Raises:
        NoHintPlaceError: no user message, or its content has no text part.
    """
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "user":
            changed = {**messages[index], "content": _appended(messages[index].get("content"), block)}
            return [*messages[:index], changed, *messages[index + 1 :]]
    raise NoHintPlaceError("the request has no user message")


def _appended(content: Any, block: str) -> Any:
    if isinstance(content, str):
        return content + block
    if isinstance(content, list):
        for index in range(len(content) - 1, -1, -1):
            part = content[index]
            if isinstance(part, str):
                return [*content[:index], part + block, *content[index + 1 :]]
            if isinstance(part, dict) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
                changed = {**part, "text": part["text"] + block}
                return [*content[:index], changed, *content[index + 1 :]]
    raise NoHintPlaceError("the last user message has no text part")
