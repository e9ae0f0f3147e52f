"""Cuts a stream of server-sent events at event borders and lets a reader rewrite the JSON in them."""

from __future__ import annotations

import json
import re

import structlog

from hintloop_rollout_proxy.engines.dialect import Reader

#: Two line ends in a row; a line ends in CR LF, LF or CR, and a CR LF is never taken for two.
BORDER = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
LINE_END = re.compile(rb"\r\n|\n|\r")
DONE = b"[DONE]"

log = structlog.get_logger()


class EventRelay:
    """What comes in as blocks goes out as whole events, byte for byte unless the reader changes one."""

    def __init__(self, reader: Reader) -> None:
        """Let ``reader`` see every event."""
        self._reader = reader
        self._rest = b""

    def feed(self, block: bytes) -> bytes:
        """The events that ``block`` completed, as the client may see them."""
        data = self._rest + block if self._rest else block
        out: list[bytes] = []
        start = 0
        for border in BORDER.finditer(data):
            if border.end() == len(data) and data.endswith(b"\r"):
                # An LF that belongs to the same line end may be on its way.
                break
            seen = self._event(data[start : border.start()])
            if seen is not None:
                out += (seen, border.group())
            start = border.end()
        self._rest = data[start:]
        return b"".join(out)

    def rest(self) -> bytes:
        """What the engine left without a border: its last event, or nothing when that is cut.

        A cut event means nothing to a client, and could show what only we asked for.
        """
        rest, self._rest = self._rest, b""
        border = BORDER.search(rest)
        if border is not None:
            seen = self._event(rest[: border.start()])
            return b"" if seen is None else seen + border.group()
        if not rest or not self._complete(rest):
            return b""
        return self._event(rest) or b""

    def _complete(self, rest: bytes) -> bool:
        payload = payload_of(rest)
        if payload is None or payload == DONE:
            return True
        try:
            json.loads(payload)
        except (ValueError, RecursionError):
            return False
        return True

    def _event(self, event: bytes) -> bytes | None:
        payload = payload_of(event)
        if payload is None:
            return event
        if payload == DONE:
            self._reader.answer.finished = True
            return event
        try:
            seen = self._reader.event(payload)
        except Exception as error:  # noqa: BLE001 - the client's stream goes on, whatever we cannot read of it
            log.warning("unreadable event in an answer", error=repr(error))
            self._reader.answer.error = f"unreadable event: {error!s:.200}"
            seen = self._reader.hide(payload)
        if seen is None:
            return None
        return event if seen is payload else with_payload(event, seen)


def payload_of(event: bytes) -> bytes | None:
    """The joined ``data`` lines of an event, or ``None`` when it has none."""
    if event.startswith(b"data:") and not LINE_END.search(event):
        return event[5:].strip()
    lines = [line[5:].strip() for line in LINE_END.split(event) if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def with_payload(event: bytes, payload: bytes) -> bytes:
    """``event`` with one ``data`` line instead of its own; its other lines stay."""
    if event.startswith(b"data:") and not LINE_END.search(event):
        return b"data: " + payload
    end = LINE_END.search(event)
    others = [line for line in LINE_END.split(event) if line and not line.startswith(b"data:")]
    return (end.group() if end else b"\n").join([*others, b"data: " + payload])
