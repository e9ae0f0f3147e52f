"""Output items of a Responses answer while they grow, with the events of each kind. Knows no response object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from hintloop_rollout_proxy.apis.identity import item_id, seal_reasoning
from hintloop_rollout_proxy.apis.responses_input import CUSTOM_INPUT

Event = dict[str, Any]
"""An event without ``sequence_number``."""

IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"


class OutputItem(Protocol):
    """An item that grows. ``index`` is its place in the output."""

    index: int

    def opened(self) -> list[Event]:
        """Events at its begin."""
        ...

    def closed(self, status: str) -> list[Event]:
        """Events at its end, the last of which carries the item."""
        ...

    def document(self, status: str) -> dict[str, Any]:
        """The item as it is."""
        ...


def _added(item: OutputItem) -> Event:
    return {
        "type": "response.output_item.added",
        "output_index": item.index,
        "item": item.document(IN_PROGRESS),
    }


def _done(item: OutputItem, status: str) -> Event:
    return {"type": "response.output_item.done", "output_index": item.index, "item": item.document(status)}


@dataclass(slots=True)
class MessageItem:
    """An assistant message of one text part."""

    core: str
    index: int
    texts: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": item_id("msg", self.core, self.index), "output_index": self.index, "content_index": 0}

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": "".join(self.texts), "annotations": [], "logprobs": self.logprobs}

    def opened(self) -> list[Event]:
        """The item, and its part."""
        added = _added(self)
        return [added, {"type": "response.content_part.added", **self._place, "part": self._part()}]

    def delta(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        """More text, with its tokens' log-probabilities if asked for."""
        self.texts.append(text)
        self.logprobs += logprobs
        return [{"type": "response.output_text.delta", **self._place, "delta": text, "logprobs": logprobs}]

    def closed(self, status: str) -> list[Event]:
        """Text, part and item are done."""
        part = self._part()
        text = {"type": "response.output_text.done", **self._place, "text": part["text"], "logprobs": self.logprobs}
        return [text, {"type": "response.content_part.done", **self._place, "part": part}, _done(self, status)]

    def document(self, status: str) -> dict[str, Any]:
        """The message."""
        return {
            "id": item_id("msg", self.core, self.index),
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [] if status == IN_PROGRESS else [self._part()],
        }


@dataclass(slots=True)
class ReasoningItem:
    """Reasoning, given as it was generated: these engines write no summaries."""

    core: str
    index: int
    sealed: bool
    """Whether the agent asked for ``encrypted_content``, which it brings back instead of the text."""
    texts: list[str] = field(default_factory=list)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": item_id("rs", self.core, self.index), "output_index": self.index, "content_index": 0}

    def _part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": "".join(self.texts)}

    def opened(self) -> list[Event]:
        """The item, and its part."""
        added = _added(self)
        return [added, {"type": "response.content_part.added", **self._place, "part": self._part()}]

    def delta(self, text: str) -> list[Event]:
        """More reasoning."""
        self.texts.append(text)
        return [{"type": "response.reasoning_text.delta", **self._place, "delta": text}]

    def closed(self, status: str) -> list[Event]:
        """Text, part and item are done."""
        part = self._part()
        text = {"type": "response.reasoning_text.done", **self._place, "text": part["text"]}
        return [text, {"type": "response.content_part.done", **self._place, "part": part}, _done(self, status)]

    def document(self, status: str) -> dict[str, Any]:
        """The reasoning."""
        whole = status != IN_PROGRESS
        item: dict[str, Any] = {
            "id": item_id("rs", self.core, self.index),
            "type": "reasoning",
            "summary": [],
            "content": [self._part()] if whole else [],
            "status": status,
        }
        if self.sealed:
            item["encrypted_content"] = seal_reasoning("".join(self.texts)) if whole else ""
        return item


@dataclass(slots=True)
class CallItem:
    """A function call; its arguments grow as they are generated."""

    core: str
    index: int
    call_id: str
    name: str
    namespace: str | None = None
    texts: list[str] = field(default_factory=list)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": item_id("fc", self.core, self.index), "output_index": self.index}

    def opened(self) -> list[Event]:
        """The item."""
        return [_added(self)]

    def delta(self, text: str) -> list[Event]:
        """More of the arguments."""
        if not text:
            return []
        self.texts.append(text)
        return [{"type": "response.function_call_arguments.delta", **self._place, "delta": text}]

    def closed(self, status: str) -> list[Event]:
        """Arguments and item are done."""
        arguments = "".join(self.texts)
        done = {"type": "response.function_call_arguments.done", **self._place, "arguments": arguments}
        return [done, _done(self, status)]

    def document(self, status: str) -> dict[str, Any]:
        """The call."""
        item = {
            "id": item_id("fc", self.core, self.index),
            "type": "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": "".join(self.texts),
        }
        return item if self.namespace is None else {**item, "namespace": self.namespace}


@dataclass(slots=True)
class CustomCallItem:
    """A custom tool's call. Its text stands inside JSON arguments, so it is told at once when it is whole."""

    core: str
    index: int
    call_id: str
    name: str
    texts: list[str] = field(default_factory=list)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": item_id("ctc", self.core, self.index), "output_index": self.index}

    def opened(self) -> list[Event]:
        """The item."""
        return [_added(self)]

    def delta(self, text: str) -> list[Event]:
        """More of the arguments, of which nothing is told yet."""
        self.texts.append(text)
        return []

    def closed(self, status: str) -> list[Event]:
        """The whole text in one delta; text and item are done."""
        text = self._input()
        delta = {"type": "response.custom_tool_call_input.delta", **self._place, "delta": text}
        done = {"type": "response.custom_tool_call_input.done", **self._place, "input": text}
        return [delta, done, _done(self, status)]

    def _input(self) -> str:
        """What the model wrote; as it stands when it did not keep to the wrapping."""
        text = "".join(self.texts)
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
        found = value.get(CUSTOM_INPUT) if isinstance(value, dict) else None
        return found if isinstance(found, str) else text

    def document(self, status: str) -> dict[str, Any]:
        """The call."""
        return {
            "id": item_id("ctc", self.core, self.index),
            "type": "custom_tool_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "input": "" if status == IN_PROGRESS else self._input(),
        }
