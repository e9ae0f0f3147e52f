"""Cuts a stream of server-sent events at event borders and lets a reader rewrite the JSON in them."""

from __future__ import annotations

import msgspec

from hintloop_rollout_proxy.engines.dialect import Reader

BORDER = b"\n\n"
DONE = b"[DONE]"


class EventRelay:
    """What comes in as blocks goes out as whole events, byte for byte unless the reader changes one."""

    def __init__(self, reader: Reader) -> None:
        """Let ``reader`` see every event."""
        self._reader = reader
        self._rest = b""

    def feed(self, block: bytes) -> bytes:
        """The events that ``block`` completed, as the client may see them."""
        data = self._rest + block if self._rest else block
        end = data.rfind(BORDER)
        if end < 0:
            self._rest = data
            return b""
        self._rest = data[end + len(BORDER) :]
        out = []
        for event in data[:end].split(BORDER):
            seen = self._event(event)
            if seen is not None:
                out.append(seen)
                out.append(BORDER)
        return b"".join(out)

    def rest(self) -> bytes:
        """What the engine left without a border."""
        rest, self._rest = self._rest, b""
        return rest

    def _event(self, event: bytes) -> bytes | None:
        if not event.startswith(b"data:"):
            return event
        payload = event[5:].strip()
        if payload == DONE:
            self._reader.answer.finished = True
            return event
        try:
            seen = self._reader.event(payload)
        except (msgspec.DecodeError, ValueError) as error:
            self._reader.answer.error = f"unreadable event: {error}"
            return event
        if seen is None:
            return None
        return event if seen is payload else b"data: " + seen
