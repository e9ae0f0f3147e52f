"""Lets answers pass that carry no exact ids: nothing is added or hidden, only the model's name and an id are seen."""

from __future__ import annotations

import msgspec

from hintloop_rollout_proxy.engines.answer import Answer
from hintloop_rollout_proxy.engines.quick import QuickWay


class Named(msgspec.Struct):
    """The id of an answer, or of the answer that an event belongs to."""

    id: str | None = None


class NativeReply(msgspec.Struct):
    """An answer or an event of the Responses or Messages API, as far as it is read."""

    id: str | None = None
    type: str | None = None
    response: Named | None = None
    message: Named | None = None


#: Types of a stream's last event.
LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete", "response.failed")
_LAST = tuple(f'"{name}"'.encode() for name in LAST_EVENTS)
_decoder = msgspec.json.Decoder(NativeReply)


class NativeReader:
    """Reads one answer of an API whose answers are not captured."""

    def __init__(self, model: str | None, public_model: str) -> None:
        """Rename ``model``, the engine's own name of it."""
        self.answer = Answer(has_message=False)
        self.quick: QuickWay | None = None
        renamed = model is not None and model != public_model
        self._old = b'"model":' + msgspec.json.encode(model) if renamed else None
        self._new = b'"model":' + msgspec.json.encode(public_model)

    def event(self, data: bytes) -> bytes | None:
        """Let one event pass; see ``Reader.event``."""
        if self.answer.response_id is None or any(last in data for last in _LAST):
            self._read(data)
        return data if self._old is None or self._old not in data else data.replace(self._old, self._new)

    def body(self, data: bytes) -> bytes:
        """Let a whole answer pass; see ``Reader.body``."""
        self.answer.finished = True
        return self.event(data) or data

    def hide(self, data: bytes) -> bytes | None:
        """Nothing is hidden."""
        return data

    def ended(self) -> None:
        """These APIs end their streams each in its own way."""
        self.answer.finished = True

    def _read(self, data: bytes) -> None:
        try:
            reply = _decoder.decode(data)
        except msgspec.DecodeError:
            return
        if self.answer.response_id is None:
            holder = reply.response or reply.message
            self.answer.response_id = reply.id if holder is None else holder.id
        if reply.type in LAST_EVENTS:
            self.answer.finished = True
