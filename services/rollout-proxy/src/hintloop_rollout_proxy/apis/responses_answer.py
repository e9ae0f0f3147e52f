"""From a chat completion back to a Responses answer, whole or as events. Owns the response object and their order."""

from __future__ import annotations

from typing import Any

import msgspec

from hintloop_rollout_proxy.apis.chat_answer import (
    Call,
    Chat,
    Choice,
    Kind,
    Piece,
    Usage,
    error_of,
    pieces,
    read_chat,
    read_error,
    sse,
)
from hintloop_rollout_proxy.apis.identity import call_id, response_id
from hintloop_rollout_proxy.apis.responses_items import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    CallItem,
    CustomCallItem,
    Event,
    MessageItem,
    ReasoningItem,
)
from hintloop_rollout_proxy.apis.responses_request import ENCRYPTED, Asked
from hintloop_rollout_proxy.apis.translation import Fields

#: Members of the request that the answer repeats, with the vendor's values where the request has none.
REPEATED: dict[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
_LIMITS = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ENDED = ("stop", "tool_calls", "function_call")


class ResponsesAnswer:
    """The translation of one request; see `translation.Translation`."""

    def __init__(self, asked: Asked, core: str) -> None:
        """Answer ``asked`` under ids made from ``core``."""
        self.fields: Fields = asked.chat
        self.response_id = response_id(core)
        self.output: list[dict[str, Any]] = []
        self.status = IN_PROGRESS
        self._asked = asked
        self._core = core
        self._sequence = 0
        self._open: MessageItem | ReasoningItem | CallItem | CustomCallItem | None = None
        self._open_call: int | None = None
        self._calls_seen: set[int] = set()
        self._begun = False
        self._model, self._created = "", 0.0
        self._usage: Usage | None = None
        self._finish: str | None = None

    # The way back of a whole answer.

    def body(self, chat: bytes) -> bytes:
        """The response object; raises ``msgspec.DecodeError`` when ``chat`` is no chat completion."""
        self._read(read_chat(chat))
        self._close_item(self._final_status())
        self.status = self._response_status()
        return msgspec.json.encode(self._response(self._failure()))

    # The way back of a stream.

    def begin(self) -> bytes:
        """Nothing: the first chunk tells when and by which model the response was created."""
        return b""

    def event(self, chunk: bytes) -> bytes:
        """Events for a chunk; raises ``msgspec.DecodeError`` when it is none."""
        if self.status != IN_PROGRESS:
            return b""
        chat = read_chat(chunk)
        if chat.error is not None:
            return self._fail(error_of(chat.error).message)
        self._model, self._created = self._model or chat.model, self._created or chat.created
        return self._write(self._prelude() + self._read(chat))

    def end(self) -> bytes:
        """The events that end the response."""
        if self.status != IN_PROGRESS:
            return b""
        if self._finish not in (*_ENDED, *_LIMITS):
            return self._fail(self._failure() or "")
        events = self._prelude() + self._close_item(self._final_status())
        self.status = self._response_status()
        return self._write([*events, {"type": f"response.{self.status}", "response": self._response(None)}])

    def error(self, status: int, body: bytes) -> bytes:
        """OpenAI's error shape, in which most engines answer already: then as it is."""
        found = read_error(body)
        if found.wrapped:
            return body
        kind = found.kind or ("invalid_request_error" if status < 500 else "server_error")
        members = {"message": found.message, "type": kind, "param": found.param, "code": found.code}
        return msgspec.json.encode({"error": members})

    def broken(self, detail: str) -> bytes:
        """The response failed."""
        return self._fail(detail) if self.status == IN_PROGRESS else b""

    # What both ways share.

    def _read(self, chat: Chat) -> list[Event]:
        """Take in a chat completion or a chunk."""
        self._model, self._created = self._model or chat.model, self._created or chat.created
        self._usage = chat.usage or self._usage
        events: list[Event] = []
        for choice in chat.choices:
            if choice.index == 0:
                logprobs = self._logprobs(choice)
                for piece in pieces(choice.delta or choice.message):
                    events += self._piece(piece, logprobs)
                self._finish = choice.finish_reason or self._finish
        return events

    def _logprobs(self, choice: Choice) -> list[dict[str, Any]]:
        if not self._asked.wants_logprobs or choice.logprobs is None:
            return []
        return choice.logprobs.content or []

    def _piece(self, piece: Piece, logprobs: list[dict[str, Any]]) -> list[Event]:
        if piece.kind is Kind.CALL:
            assert piece.call is not None
            return self._call_piece(piece.call, piece.text)
        events: list[Event] = []
        if piece.kind is Kind.REASONING:
            if not isinstance(self._open, ReasoningItem):
                events += self._open_item(ReasoningItem(self._core, self._next_index(), self._seals()))
            assert isinstance(self._open, ReasoningItem)
            return events + self._open.delta(piece.text)
        if not isinstance(self._open, MessageItem):
            events += self._open_item(MessageItem(self._core, self._next_index()))
        assert isinstance(self._open, MessageItem)
        return events + self._open.delta(piece.text, logprobs)

    def _call_piece(self, call: Call, arguments: str) -> list[Event]:
        assert call.index is not None
        events: list[Event] = []
        if call.index != self._open_call:
            if call.index in self._calls_seen:
                raise ValueError(f"tool call {call.index} goes on after another began")
            name = call.function.name if call.function is not None else None
            if not name:
                raise ValueError(f"tool call {call.index} begins without a name")
            events = self._open_item(self._make_call(call, name))
            self._open_call = call.index
            self._calls_seen.add(call.index)
        assert isinstance(self._open, CallItem | CustomCallItem)
        return events + self._open.delta(arguments)

    def _make_call(self, call: Call, name: str) -> CallItem | CustomCallItem:
        index, names = self._next_index(), self._asked.names
        identifier = call.id or call_id(self._core, index)
        if name in names.custom:
            return CustomCallItem(self._core, index, identifier, name)
        namespace, local = names.namespaced.get(name, (None, name))
        return CallItem(self._core, index, identifier, local, namespace)

    def _seals(self) -> bool:
        return ENCRYPTED in (self._asked.values.get("include") or ())

    def _next_index(self) -> int:
        return len(self.output) + (self._open is not None)

    def _open_item(self, item: MessageItem | ReasoningItem | CallItem | CustomCallItem) -> list[Event]:
        events = self._close_item(COMPLETED)
        self._open = item
        return events + item.opened()

    def _close_item(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        item, self._open, self._open_call = self._open, None, None
        self.output.append(item.document(status))
        return item.closed(status)

    def _final_status(self) -> str:
        return COMPLETED if self._finish in _ENDED else INCOMPLETE

    def _response_status(self) -> str:
        if self._finish in _ENDED:
            return COMPLETED
        return INCOMPLETE if self._finish in _LIMITS else "failed"

    def _failure(self) -> str | None:
        if self._finish in (*_ENDED, *_LIMITS):
            return None
        return f"the engine ended the answer with finish_reason {self._finish!r}"

    def _fail(self, message: str) -> bytes:
        events = self._prelude()
        self._close_item(INCOMPLETE)
        self.status = "failed"
        return self._write([*events, {"type": "response.failed", "response": self._response(message)}])

    def _prelude(self) -> list[Event]:
        """The events at the response's begin, once."""
        if self._begun:
            return []
        self._begun = True
        response = self._response(None)
        return [
            {"type": "response.created", "response": response},
            {"type": "response.in_progress", "response": response},
        ]

    def _response(self, failure: str | None) -> dict[str, Any]:
        values = self._asked.values
        repeated = {name: _or_default(values.get(name), default) for name, default in REPEATED.items()}
        reason = _LIMITS.get(self._finish or "") if self.status == INCOMPLETE else None
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": int(self._created),
            "status": self.status,
            "error": None if failure is None else {"code": "server_error", "message": failure},
            "incomplete_details": None if reason is None else {"reason": reason},
            "model": self._model,
            "output": list(self.output),
            "usage": None if self.status == IN_PROGRESS else self._usage_document(),
            **repeated,
        }

    def _usage_document(self) -> dict[str, Any] | None:
        usage = self._usage
        if usage is None:
            return None
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.generated,
            "output_tokens_details": {"reasoning_tokens": usage.reasoned},
            "total_tokens": usage.prompt_tokens + usage.generated,
        }

    def _write(self, events: list[Event]) -> bytes:
        written = []
        for event in events:
            written.append(sse(event["type"], {**event, "sequence_number": self._sequence}))
            self._sequence += 1
        return b"".join(written)


def _or_default(value: Any, default: Any) -> Any:
    """What was asked, with the vendor's values for what was left out of it."""
    if value is None:
        return default
    return {**default, **value} if isinstance(default, dict) and isinstance(value, dict) else value
