"""From a chat completion back to a message of the Messages API, whole or as events. Owns blocks and their order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from hintloop_rollout_proxy.apis.chat_answer import (
    Call,
    Chat,
    Kind,
    Piece,
    UpstreamError,
    Usage,
    error_of,
    pieces,
    read_chat,
    read_error,
    sse,
)
from hintloop_rollout_proxy.apis.identity import call_id, message_id, signature
from hintloop_rollout_proxy.apis.translation import Fields

Event = dict[str, Any]
#: The vendor's name for arguments that are no JSON object.
INVALID = "INVALID_JSON"
_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
#: The vendor's error type of an HTTP status.
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(status: int, error: UpstreamError) -> bytes:
    """An error as the vendor writes it."""
    kind = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})


@dataclass(slots=True)
class Block:
    """A content block that grows; ``start`` is what it is before anything is in it."""

    kind: Kind
    start: dict[str, Any]
    texts: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The whole block."""
        text = "".join(self.texts)
        if self.kind is Kind.TEXT:
            return {**self.start, "text": text}
        if self.kind is Kind.REASONING:
            return {**self.start, "thinking": text}
        return {**self.start, "input": read_arguments(text)}

    def delta(self, text: str) -> Event:
        """The delta that adds ``text``."""
        if self.kind is Kind.TEXT:
            return {"type": "text_delta", "text": text}
        if self.kind is Kind.REASONING:
            return {"type": "thinking_delta", "thinking": text}
        return {"type": "input_json_delta", "partial_json": text}


def read_arguments(text: str) -> dict[str, Any]:
    """A call's arguments as the object that this API has; what is none is kept under the vendor's name for it."""
    try:
        value = msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {INVALID: text}


class MessagesAnswer:
    """The translation of one request; see `translation.Translation`."""

    def __init__(self, chat: Fields, core: str) -> None:
        """Answer what ``chat`` asks under ids made from ``core``."""
        self.fields = chat
        self.response_id = message_id(core)
        self._core = core
        self._blocks: list[Block] = []
        self._open: Block | None = None
        self._open_call: int | None = None
        self._calls_seen: set[int] = set()
        self._begun = self._ended = False
        self._model = ""
        self._usage: Usage | None = None
        self._finish: str | None = None
        self._stop_string: str | None = None

    def body(self, chat: bytes) -> bytes:
        """The message; raises ``msgspec.DecodeError`` when ``chat`` is no chat completion."""
        self._read(read_chat(chat))
        self._close_block()
        reason, sequence = self._stop()
        message = self._message([block.document() for block in self._blocks])
        return msgspec.json.encode({**message, "stop_reason": reason, "stop_sequence": sequence})

    def begin(self) -> bytes:
        """Nothing: the first chunk tells the model and the length of the prompt."""
        return b""

    def event(self, chunk: bytes) -> bytes:
        """Events for a chunk; raises ``msgspec.DecodeError`` when it is none."""
        if self._ended:
            return b""
        chat = read_chat(chunk)
        if chat.error is not None:
            return self._fail(error_of(chat.error).message)
        self._usage = chat.usage or self._usage
        self._model = self._model or chat.model
        events = self._read(chat)
        if self._usage is None and not events:
            # One engine tells the length of the prompt with the first token only.
            return b""
        return _write(self._prelude() + events)

    def end(self) -> bytes:
        """The events that end the message."""
        if self._ended:
            return b""
        if self._finish not in _REASONS:
            return self._fail(f"the engine ended the answer with finish_reason {self._finish!r}")
        self._ended = True
        reason, sequence = self._stop()
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return _write(
            [
                *self._prelude(),
                *self._close_block(),
                {"type": "message_delta", "delta": delta, "usage": self._usage_document()},
                {"type": "message_stop"},
            ]
        )

    def error(self, status: int, body: bytes) -> bytes:
        """The vendor's error shape."""
        return error_body(status, read_error(body))

    def broken(self, detail: str) -> bytes:
        """An error event; no message_stop follows."""
        return b"" if self._ended else self._fail(detail)

    def _fail(self, message: str) -> bytes:
        self._ended = True
        return _write([{"type": "error", "error": {"type": "api_error", "message": message}}])

    def _prelude(self) -> list[Event]:
        """The events at the message's begin, once."""
        if self._begun:
            return []
        self._begun = True
        return [{"type": "message_start", "message": self._message([])}, {"type": "ping"}]

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage_document(),
        }

    def _usage_document(self) -> dict[str, Any]:
        usage = self._usage or Usage()
        return {
            "input_tokens": max(0, usage.prompt_tokens - usage.cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached,
            "output_tokens": usage.generated,
        }

    def _stop(self) -> tuple[str | None, str | None]:
        called = any(block.kind is Kind.CALL for block in self._blocks) or self._open_call is not None
        if self._finish in ("stop", "tool_calls", "function_call") and called:
            # A forced call ends with "stop" on one engine; one cut by a stop sequence must not run.
            return ("stop_sequence", self._stop_string) if self._cut_call() else ("tool_use", None)
        if self._finish == "stop" and self._stop_string is not None:
            return "stop_sequence", self._stop_string
        return _REASONS.get(self._finish or ""), None

    def _cut_call(self) -> bool:
        last = self._open or self._blocks[-1]
        whole = last.kind is not Kind.CALL or INVALID not in last.document()["input"]
        return self._stop_string is not None and not whole

    def _read(self, chat: Chat) -> list[Event]:
        """Take in a chat completion or a chunk."""
        self._model, self._usage = self._model or chat.model, chat.usage or self._usage
        events: list[Event] = []
        for choice in chat.choices:
            if choice.index == 0:
                for piece in pieces(choice.delta or choice.message):
                    events += self._piece(piece)
                self._finish = choice.finish_reason or self._finish
                self._stop_string = choice.stop_string or self._stop_string
        return events

    def _piece(self, piece: Piece) -> list[Event]:
        events: list[Event] = []
        if piece.kind is Kind.CALL:
            assert piece.call is not None
            events = self._enter_call(piece.call)
        elif self._open is None or self._open.kind is not piece.kind:
            events = self._open_block(self._make_block(piece.kind))
        assert self._open is not None
        if not piece.text:
            return events
        self._open.texts.append(piece.text)
        return [*events, self._event("content_block_delta", delta=self._open.delta(piece.text))]

    def _make_block(self, kind: Kind) -> Block:
        if kind is Kind.TEXT:
            return Block(kind, {"type": "text", "text": "", "citations": None})
        return Block(kind, {"type": "thinking", "thinking": "", "signature": ""})

    def _enter_call(self, call: Call) -> list[Event]:
        if call.index == self._open_call:
            return []
        assert call.index is not None
        name = call.function.name if call.function is not None else None
        if call.index in self._calls_seen:
            raise ValueError(f"tool call {call.index} goes on after another began")
        if not name:
            raise ValueError(f"tool call {call.index} begins without a name")
        identifier = call.id or call_id(self._core, call.index)
        events = self._open_block(Block(Kind.CALL, {"type": "tool_use", "id": identifier, "name": name, "input": {}}))
        self._open_call = call.index
        self._calls_seen.add(call.index)
        return events

    def _open_block(self, block: Block) -> list[Event]:
        events = self._close_block()
        self._open = block
        return [*events, self._event("content_block_start", content_block=dict(block.start))]

    def _close_block(self) -> list[Event]:
        if self._open is None:
            return []
        events = []
        if self._open.kind is Kind.REASONING:
            signed = signature(self._core, len(self._blocks))
            events.append(self._event("content_block_delta", delta={"type": "signature_delta", "signature": signed}))
            self._open.start["signature"] = signed
        events.append(self._event("content_block_stop"))
        self._blocks.append(self._open)
        self._open = self._open_call = None
        return events

    def _event(self, kind: str, **members: Any) -> Event:
        return {"type": kind, "index": len(self._blocks), **members}


def _write(events: list[Event]) -> bytes:
    return b"".join(sse(event["type"], event) for event in events)
