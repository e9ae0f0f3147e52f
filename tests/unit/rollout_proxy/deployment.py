"""Linkers of one policy, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from hintloop_contract.messages import Capture, TurnNote
from hintloop_rollout_proxy.linking import Decision, Link, Linker, LinkerOptions, Placed

BASH = {"tools": [{"type": "function", "function": {"name": "bash"}}]}
CALL = {"id": "functions.bash:0", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "functions.bash:0", "content": "a"}
FAILED: dict[str, Any] = {"status": "refused", "http_status": 503, "problem": "upstream_error"}


class Deployment:
    """Linkers of one policy, one after the other, and what came of all of them."""

    def __init__(self, **options: int) -> None:
        numbers = itertools.count()
        self._make: Callable[[], Linker] = lambda: Linker(LinkerOptions(**options), make_id=lambda: f"s{next(numbers)}")
        self._linker = self._make()
        self.pending: dict[str, Capture] = {}
        self.notes: list[TurnNote] = []
        self.places: dict[str, Placed] = {}
        self.links: dict[str, Link] = {}

    def feed(self, *captures: Capture) -> None:
        for capture in captures:
            self.pending[capture.turn_id] = capture
            self.tick(capture.end_ms)
            self._take(self._linker.feed(capture))

    def flush(self) -> None:
        self._take(self._linker.flush())

    def tick(self, now_ms: int) -> None:
        self._take(self._linker.tick(now_ms))

    def take_over(self, now_ms: int) -> None:
        """The linker dies; the next one reads what is pending, and the notes of the rest."""
        self._linker = self._make()
        self._linker.knows_nothing_before(now_ms)
        self._linker.resume(note for note in self.notes if note.turn_id not in self.pending)
        for capture in list(self.pending.values()):
            self._take(self._linker.feed(capture))

    def _take(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Placed):
                self.places[decision.turn_id] = decision
                continue
            assert self.pending.pop(decision.turn_id), "each is settled once"
            if decision.note is not None:
                self.notes.append(decision.note)
            if isinstance(decision, Link):
                self.links[decision.turn_id] = decision

    def stands(self, turn_id: str) -> tuple[str, int, int]:
        """Session, index in it, segment."""
        place = self.places[turn_id]
        return place.session_id, place.turn_index, place.segment
