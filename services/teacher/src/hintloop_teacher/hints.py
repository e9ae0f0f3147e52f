"""Where the hint goes: behind the last text part of one message, by ``opd.hint_place``. Nothing else is touched.

The default is the last *user* message, also when tools spoke after it: what the user would have had to say. The other
place is the last message, a tool's result as well: nearest to the answer, and inside what the tool is seen to say.
"""

from __future__ import annotations

from typing import Any, Literal

from hintloop_teacher.errors import NoHintPlaceError

Message = dict[str, Any]
HintPlace = Literal["last_user", "last_message"]
#: Whose last message may carry a hint: those that the model answers.
SPOKEN_TO_THE_MODEL = ("user", "tool", "function")
_TEXT_PARTS = ("text", "input_text")


def hint_block(hint_format: str, hint: str) -> str:
    """``hint_format`` with its one ``{hint}`` filled in; braces anywhere else stay as they are."""
    before, _, after = hint_format.partition("{hint}")
    return before + hint + after


def with_hint(messages: list[Message], block: str, place: HintPlace = "last_user") -> list[Message]:
    """The messages with ``block`` behind the last text part of one message; the input stays as it is.

    Raises:
        NoHintPlaceError: there is no such message, or its content has no text part.
    """
    index = hinted_index(messages, place)
    changed = {**messages[index], "content": _appended(messages[index].get("content"), block)}
    return [*messages[:index], changed, *messages[index + 1 :]]


def hinted_index(messages: list[Message], place: HintPlace) -> int:
    """Which message carries the hint. Raises ``NoHintPlaceError`` when none may."""
    roles = [message.get("role") for message in messages]
    if place == "last_user":
        if "user" not in roles:
            raise NoHintPlaceError("the request has no user message")
        return len(roles) - 1 - roles[::-1].index("user")
    if not roles or roles[-1] not in SPOKEN_TO_THE_MODEL:
        last = roles[-1] if roles else "absent"
        raise NoHintPlaceError(f"the last message is {last}; a hint goes behind {', '.join(SPOKEN_TO_THE_MODEL)}")
    return len(roles) - 1


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
    raise NoHintPlaceError("the message that would carry the hint has no text part")
