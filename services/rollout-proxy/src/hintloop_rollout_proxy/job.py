"""One request while it is served: what it is, how far it came."""

from __future__ import annotations

import msgspec

from hintloop_rollout_proxy.apis.translation import Translation
from hintloop_rollout_proxy.asgi import AnswerWatch, RawHeaders, Send
from hintloop_rollout_proxy.asking import Question
from hintloop_rollout_proxy.capturing import Exchange
from hintloop_rollout_proxy.events import EventRelay
from hintloop_rollout_proxy.parcels import Parcel
from hintloop_rollout_proxy.timing import Timing


class Job(msgspec.Struct):
    """One request while it is served. ``path`` is asked at the engine; ``question`` says what."""

    exchange: Exchange
    public_path: str
    path: str
    question: Question
    raw_headers: RawHeaders
    send: Send
    timing: Timing
    translation: Translation | None = None
    watch: AnswerWatch | None = None
    relay: EventRelay | None = None
    whole: tuple[int, RawHeaders, bytes] | None = None
    """Status, headers and body of an answer in one piece, once it is there."""
    started: bool = False
    """Whether the client got something of the answer."""
    concluded: bool = False
    """Whether the engine's answer ended."""
    parcels: list[Parcel] | None = None
    """Captures that are not on their way yet, once they are made."""

    def abort(self, detail: str) -> None:
        """The answer was cut, unless it was whole before: what comes behind its end is none of it."""
        if not (self.concluded and self.exchange.status == "complete"):
            self.exchange.abort(detail)
