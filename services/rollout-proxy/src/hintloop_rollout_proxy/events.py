"""Cuts a stream of server-sent events at event borders and lets a reader rewrite the JSON in them."""

from __future__ import annotations

import json
import re

import structlog

from hintloop_rollout_proxy.apis.translation import Translation
from hintloop_rollout_proxy.engines.dialect import Reader
from hintloop_rollout_proxy.errors import said

#: Two line ends in a row; a line ends in CR LF, LF or CR, and a CR LF is never taken for two.
BORDER = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
LINE_END = re.compile(rb"\r\n|\n|\r")
DATA, END = b"data: ", b"\n\n"
DONE = b"[DONE]"

log = structlog.get_logger()


class EventRelay:
    """What comes in as blocks goes out as whole events, byte for byte unless the reader changes one."""

    #: Whether an event goes out as the one line that it is.
    _plain = True

    def __init__(self, reader: Reader) -> None:
        """Let ``reader`` see every event."""
        self._reader = reader
        self._rest = b""

    def feed(self, block: bytes) -> bytes:
        """The events that ``block`` completed, as the client may see them."""
        data = self._rest + block if self._rest else block
        if b"\r" in data:
            return self._feed_any(data)
        out: list[bytes] = []
        begin, reader, plain = 0, self._reader, self._plain
        while True:
            if plain and reader.quick is not None:
                begin = reader.quick.feed(data, begin, out)
            # The engines' own layout, and in it one line of data.
            end = data.find(END, begin)
            if end < 0:
                break
            out += self._seen(data[begin:end])
            begin = end + len(END)
        self._rest = data[begin:]
        return out[0] if len(out) == 1 else b"".join(out)

    def _seen(self, event: bytes) -> tuple[bytes, ...]:
        payload = event[6:]
        if payload == DONE or b"\n" in event or not event.startswith(DATA):
            seen = self._event(event)
            return () if seen is None else (self._with_border(seen, END),)
        seen = self._see(payload)
        if seen is None:
            return ()
        return (DATA, seen, END) if self._plain else (self._line(seen),)

    def _line(self, seen: bytes) -> bytes:
        return DATA + seen + END

    def _feed_any(self, data: bytes) -> bytes:
        out: list[bytes] = []
        start = 0
        for border in BORDER.finditer(data):
            if border.end() == len(data) and data.endswith(b"\r"):
                # An LF that belongs to the same line end may be on its way.
                break
            seen = self._event(data[start : border.start()])
            if seen is not None:
                out.append(self._with_border(seen, border.group()))
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
            return b"" if seen is None else self._with_border(seen, border.group())
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
        """One event as the client sees it, without its border; ``None`` when it sees nothing."""
        payload = payload_of(event)
        if payload is None:
            return event
        if payload == DONE:
            self._reader.answer.finished = True
            return self._done(event)
        seen = self._see(payload)
        return None if seen is None else self._write(event, payload, seen)

    def _see(self, payload: bytes) -> bytes | None:
        try:
            return self._reader.event(payload)
        except Exception as error:  # noqa: BLE001 - the client's stream goes on, whatever we cannot read of it
            return self._unread(payload, error)

    def _unread(self, payload: bytes, error: Exception) -> bytes | None:
        log.warning("unreadable event in an answer", error=said(error))
        self._reader.answer.error = f"unreadable event: {error!s:.200}"
        return self._reader.hide(payload)

    def _write(self, event: bytes, payload: bytes, seen: bytes) -> bytes:
        return event if seen is payload else with_payload(event, seen)

    def _done(self, event: bytes) -> bytes:
        return event

    def _with_border(self, seen: bytes, border: bytes) -> bytes:
        return seen + border


class TranslatingRelay(EventRelay):
    """Gives the events of a chat in another API's form."""

    _plain = False

    def __init__(self, reader: Reader, translation: Translation) -> None:
        """Translate by ``translation`` what ``reader`` lets through."""
        super().__init__(reader)
        self._translation = translation
        self._over = False

    def begin(self) -> bytes:
        """What is due before the first chunk."""
        return self._translation.begin()

    def rest(self) -> bytes:
        """The end of the answer, or that it broke off."""
        rest = super().rest()
        if self._over:
            return rest
        return rest + self.broken("the engine ended the stream before it was whole")

    def broken(self, detail: str) -> bytes:
        """That the answer broke off, once."""
        if self._over:
            return b""
        self._over = True
        return self._translation.broken(detail)

    def _line(self, seen: bytes) -> bytes:
        return self._translated(seen)

    def _write(self, event: bytes, payload: bytes, seen: bytes) -> bytes:
        return self._translated(seen)

    def _translated(self, seen: bytes) -> bytes:
        if self._over:
            return b""
        answer = self._reader.answer
        if answer.error is None:
            try:
                return self._translation.event(seen)
            except Exception as error:  # noqa: BLE001 - the client is told, whatever cannot be translated
                log.warning("untranslatable event in an answer", error=said(error))
                answer.error = f"untranslatable event: {error!s:.200}"
        return self.broken(answer.error)

    def _done(self, event: bytes) -> bytes:
        if self._over:
            return b""
        self._over = True
        return self._translation.end()

    def _with_border(self, seen: bytes, border: bytes) -> bytes:
        """Translated events carry their own borders; comments keep the engine's."""
        return seen + border if seen.startswith(b":") else seen


def payload_of(event: bytes) -> bytes | None:
    """The joined ``data`` lines of an event, or ``None`` when it has none."""
    if event.startswith(DATA) and b"\n" not in event and b"\r" not in event:
        return event[len(DATA) :]
    lines = [line[5:].strip() for line in LINE_END.split(event) if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def with_payload(event: bytes, payload: bytes) -> bytes:
    """``event`` with one ``data`` line instead of its own; its other lines stay."""
    end = LINE_END.search(event)
    if event.startswith(b"data:") and end is None:
        return DATA + payload
    others = [line for line in LINE_END.split(event) if line and not line.startswith(b"data:")]
    return (end.group() if end else b"\n").join([*others, DATA + payload])
