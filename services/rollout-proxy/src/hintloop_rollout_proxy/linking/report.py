"""How traffic is read, as one object: sessions, links, side calls, retries. Owns the replay of recorded requests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import msgspec
from hintloop_contract.messages import Capture

from hintloop_rollout_proxy.linking.board import LinkerOptions
from hintloop_rollout_proxy.linking.decisions import Decision, Placed
from hintloop_rollout_proxy.linking.linker import FEEDBACK, Linker
from hintloop_rollout_proxy.linking.reading import READERS


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Requests by their position in the input. ``links``: the answer, and the request that carries its next state.

    Example: ``{"name":"loop","sessions":[[0,1]],"links":[[0,1]],"side":[],"retries":[]}``.
    """

    name: str
    sessions: list[list[int]]
    links: list[list[int]]
    side: list[int]
    retries: list[int]


def report_on(name: str, captures: Sequence[Capture], options: LinkerOptions) -> Report:
    """Link captures in the order in which they ended, as the live linker sees them, and tell their final places."""
    numbers = count()
    linker = Linker(options, make_id=lambda: f"session-{next(numbers)}")
    order = sorted(range(len(captures)), key=lambda i: (captures[i].end_ms, captures[i].start_ms, i))
    starts = sorted((captures[i].start_ms, rank) for rank, i in enumerate(order))
    decisions: list[Decision] = []
    begun: list[tuple[int, int]] = starts[::-1]
    for rank, i in enumerate(order):
        while begun and begun[-1][1] < rank:
            begun.pop()
        oldest = begun[-1][0] if begun else None
        decisions += linker.tick(captures[i].end_ms, oldest)
        try:
            decisions += linker.feed(captures[i])
        except RecursionError:
            # It nests too deep to be read: in its report it stands alone, live it goes to `dead`.
            continue
    decisions += linker.flush()
    return _tell(name, captures, decisions)


def _is_side(capture: Capture, place: Placed | None) -> bool:
    """Side calls, and requests that generate nothing at all."""
    if place is not None:
        return place.side
    return capture.api not in READERS and capture.api != FEEDBACK


def _tell(name: str, captures: Sequence[Capture], decisions: Sequence[Decision]) -> Report:
    position = {capture.turn_id: i for i, capture in enumerate(captures)}
    final = {decision.turn_id: decision for decision in decisions if isinstance(decision, Placed)}
    sessions: dict[str, list[int]] = {}
    for i, capture in enumerate(captures):
        place = final.get(capture.turn_id)
        if place is not None and not place.side:
            sessions.setdefault(place.session_id, []).append(i)
        elif place is None and capture.api in READERS:
            # It could not be read, so it belongs to nothing else.
            sessions[f"unread {i}"] = [i]
    return Report(
        name=name,
        sessions=sorted(sessions.values()),
        links=sorted(
            [position[place.continues], position[place.turn_id]]
            for place in final.values()
            if place.continues is not None and not place.side
        ),
        side=[i for i, capture in enumerate(captures) if _is_side(capture, final.get(capture.turn_id))],
        retries=sorted(position[place.turn_id] for place in final.values() if place.retry_of is not None),
    )
