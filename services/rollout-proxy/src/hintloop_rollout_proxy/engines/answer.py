"""One answer as it was seen so far. Owns what readers collect; nothing here is checked (`problems` does)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from hintloop_contract.messages import VersionSpan


class Choice(msgspec.Struct):
    """One choice of an answer. ``response_ids`` and ``logprobs`` are of equal length T when the engine behaved."""

    index: int = 0
    said: dict[str, Any] = msgspec.field(default_factory=lambda: {"role": "assistant", "content": None})
    texts: list[str] = []
    """Pieces of ``content`` that are not in ``said`` yet: adding each to a long text would copy it each time."""
    message_json: bytes | None = None
    finish_reason: str | None = None
    response_ids: list[int] | None = None
    logprobs: list[float | None] | None = None
    spans: tuple[VersionSpan, ...] = ()
    num_tokens: int | None = None
    """Generated tokens by the engine's count, where it counts each choice."""
    fault: tuple[str, str] | None = None
    """What of it could not be read: a ``DropReason`` and a detail; the first one found."""

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message as far as it was streamed; ``texts`` go into it."""
        if self.texts:
            self.said["content"] = (self.said["content"] or "") + "".join(self.texts)
            self.texts.clear()
        return self.said

    def note_fault(self, reason: str, detail: str) -> None:
        """Remember the first thing that could not be read."""
        if self.fault is None:
            self.fault = (reason, detail)

    def add_ids(self, ids: list[int]) -> None:
        """More tokens arrived."""
        if self.response_ids is None:
            self.response_ids = ids
        else:
            self.response_ids.extend(ids)

    def add_logprobs(self, logprobs: list[float | None]) -> None:
        """More log-probabilities arrived."""
        if self.logprobs is None:
            self.logprobs = logprobs
        else:
            self.logprobs.extend(logprobs)

    def merge(self, delta: Mapping[str, Any]) -> None:
        """Add a streamed delta: texts grow, tool calls grow by their index."""
        message = self.message
        for key, value in delta.items():
            if key == "content" and isinstance(value, str):
                message["content"] = (message["content"] or "") + value
                continue
            if value is None:
                continue
            if key == "tool_calls":
                calls = message.setdefault("tool_calls", {})
                for part in value:
                    _merge_call(calls, part)
            elif key == "role":
                message["role"] = value
            elif isinstance(value, str) and isinstance(message.get(key), str):
                message[key] += value
            else:
                message[key] = value

    def assistant_json(self) -> bytes:
        """The assistant message as the client received it."""
        if self.message_json is not None:
            return self.message_json
        message = dict(self.message)
        if "tool_calls" in message:
            message["tool_calls"] = [call for _, call in sorted(message["tool_calls"].items())]
        return msgspec.json.encode(message)


def _merge_call(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    call = calls.setdefault(part.get("index", 0), {"id": None, "type": "function", "function": {}})
    for key in ("id", "type"):
        if part.get(key) is not None:
            call[key] = part[key]
    function = part.get("function") or {}
    if function.get("name") is not None:
        call["function"]["name"] = function["name"]
    if function.get("arguments") is not None:
        call["function"]["arguments"] = call["function"].get("arguments", "") + function["arguments"]


class Answer(msgspec.Struct):
    """Everything that one request was answered with."""

    choices: dict[int, Choice] = {}
    response_id: str | None = None
    usage_completion_tokens: int | None = None
    """Generated tokens of all choices together."""
    prompt_ids: list[int] | None = None
    prompt_fault: tuple[str, str] | None = None
    """What of the prompt's ids could not be read."""
    finished: bool = False
    """The whole answer arrived (``[DONE]``, or the whole body)."""
    error: str | None = None
    """An error that the engine reported inside the answer, or what could not be read of it."""
    has_message: bool = True
    """Whether what was answered is known as assistant messages."""

    def choice(self, index: int) -> Choice:
        """The choice with that index, begun if need be."""
        found = self.choices.get(index)
        if found is None:
            found = self.choices[index] = Choice(index)
        return found

    @property
    def whole(self) -> bool:
        """Whether nothing of it is outstanding: it ended, or every last token and the usage behind it were seen."""
        if self.finished:
            return True
        ended = bool(self.choices) and all(choice.finish_reason is not None for choice in self.choices.values())
        counted = self.usage_completion_tokens is not None
        return ended and (counted or all(choice.num_tokens is not None for choice in self.choices.values()))
