"""From the items of a Responses request to chat messages. Owns the shapes of items; knows no store and no answer.

One answer is several items (reasoning, message, calls) and one chat message: neighbours are joined again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hintloop_rollout_proxy.apis.identity import open_reasoning

Message = dict[str, Any]
Report = Callable[[str], None]
"""Told of what has no chat form: a strict reader raises, a lenient one goes on."""

_TEXT_PARTS = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")
#: The one argument under which a custom tool's free text travels, as both engines' own endpoints name it.
CUSTOM_INPUT = "input"
NO_ITEMS: Mapping[str, Any] = {}


def flat_name(namespace: Any, name: str) -> str:
    """The chat name of a function in a namespace."""
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


def read_input(given: Any, report: Report, known: Mapping[str, Any] = NO_ITEMS) -> list[Message]:
    """The chat messages of ``input``: a string, or items.

    Args:
        given: the member's value.
        report: told of every item and part without a chat form.
        known: items by id, for references.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        report(f"input is {type(given).__name__}, neither a string nor a list of items")
        return []
    reader = ItemReader(report, known)
    for item in given:
        reader.add(item)
    for message in reader.messages:
        message.setdefault("content", None if "tool_calls" in message else "")
    return reader.messages


class ItemReader:
    """Turns items into ``messages``, one after the other."""

    def __init__(self, report: Report, known: Mapping[str, Any]) -> None:
        """Begin without messages."""
        self.messages: list[Message] = []
        self._report = report
        self._known = known
        self._by_type: dict[str, Callable[[dict[str, Any]], None]] = {
            "message": self._message,
            "function_call": self._function_call,
            "custom_tool_call": self._custom_call,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
            "reasoning": self._reasoning,
            "item_reference": self._reference,
        }

    def add(self, item: Any) -> None:
        """Add one item."""
        if not isinstance(item, dict):
            self._report(f"an input item is {type(item).__name__}, no object")
            return
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        reader = self._by_type.get(kind) if isinstance(kind, str) else None
        if reader is None:
            self._report(f"input item of type {kind!r}")
        else:
            reader(item)

    def _message(self, item: dict[str, Any]) -> None:
        role, content = item.get("role"), item.get("content")
        if role == "assistant":
            self._assistant_part("content", "".join(self._texts(content)))
        elif role in ("system", "developer"):
            self.messages.append({"role": role, "content": "\n".join(self._texts(content))})
        elif role == "user":
            self.messages.append({"role": role, "content": self._user_content(content)})
        else:
            self._report(f"message of role {role!r}")

    def _user_content(self, content: Any) -> Any:
        texts = self._texts(content)
        if len(texts) == 1:
            return texts[0]
        return [{"type": "text", "text": text} for text in texts] if texts else ""

    def _texts(self, content: Any) -> list[str]:
        if isinstance(content, str):
            return [content]
        if content is None:
            return []
        if not isinstance(content, list):
            self._report(f"content is {type(content).__name__}")
            return []
        return [text for part in content if (text := self._part_text(part)) is not None]

    def _part_text(self, part: Any) -> str | None:
        if isinstance(part, str):
            return part
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if isinstance(part, dict) and kind in _TEXT_PARTS:
            text = part.get("refusal") if kind == "refusal" else part.get("text")
            if isinstance(text, str):
                return text
        self._report(f"content part of type {kind!r}")
        return None

    def _assistant_part(self, member: str, value: str) -> None:
        """Set a member of the assistant message being put together, or begin one when it has that or comes after."""
        last = self.messages[-1] if self.messages else None
        fits = last is not None and last["role"] == "assistant" and last.get(member) is None
        if member == "reasoning" and last is not None and ("content" in last or "tool_calls" in last):
            fits = False
        if not fits or last is None:
            last = {"role": "assistant"}
            self.messages.append(last)
        last[member] = value
        if member == "reasoning":
            # vLLM reads the one name, SGLang the other.
            last["reasoning_content"] = value

    def _reasoning(self, item: dict[str, Any]) -> None:
        text = "".join(self._texts(item.get("content")))
        sealed = item.get("encrypted_content")
        if not text and isinstance(sealed, str):
            # What another vendor encrypted cannot be read by anyone here; such an item says nothing.
            text = open_reasoning(sealed) or ""
        if not text:
            text = "".join(self._texts(item.get("summary"))) if not sealed else ""
        if text:
            self._assistant_part("reasoning", text)

    def _function_call(self, item: dict[str, Any]) -> None:
        arguments = item.get("arguments")
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments if arguments is not None else {}).decode()
        self._call(item, arguments)

    def _custom_call(self, item: dict[str, Any]) -> None:
        self._call(item, msgspec.json.encode({CUSTOM_INPUT: item.get("input") or ""}).decode())

    def _call(self, item: dict[str, Any], arguments: str) -> None:
        name, call_id = item.get("name"), item.get("call_id") or item.get("id")
        if not isinstance(name, str) or not isinstance(call_id, str):
            self._report("a call without name and call_id")
            return
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant":
            last = {"role": "assistant"}
            self.messages.append(last)
        function = {"name": flat_name(item.get("namespace"), name), "arguments": arguments}
        last.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})

    def _output(self, item: dict[str, Any]) -> None:
        call_id = item.get("call_id")
        if not isinstance(call_id, str):
            self._report("an output without call_id")
            return
        content = "\n".join(self._texts(item.get("output")))
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _reference(self, item: dict[str, Any]) -> None:
        found = self._known.get(str(item.get("id")))
        if found is None:
            self._report(f"reference to item {item.get('id')!r}, which is not known here")
        else:
            self.add(found)
