"""Faults of what agents do: what comes after their answers, when, and how it is marked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .agent import Day
from .deployment import Deployment
from .fault import Fault, Injector

#: What harnesses write into the conversation when they have given up.
TIMEOUTS = ("Request timed out after 120 seconds.", "Error: stream disconnected before completion")
INTERRUPTIONS = ("[Request interrupted by user]", "Connection reset by peer")


def days(
    day: Day,
    values: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    conversations: int = 6,
    wait_s: float = 0.0,
) -> Injector:
    """Agents behave so from the first day, under these keys."""

    @contextmanager
    def inject(stack: Deployment) -> Iterator[None]:
        given = stack.overlay("traffic", values or {})
        with stack.traffic.put_aside(fresh=True), stack.with_given(given, *(["rollout-proxy"] if values else [])):
            stack.talk(conversations, day)
            time.sleep(wait_s)
            stack.quiet()
            yield

    return inject


SHORT = {"rollout": {"session_timeout_sec": 0.5}}
ALMOST = {"rollout": {"session_timeout_sec": 1.5}}
SIDE = {"x-turn-type": "side"}
#: As an agent marks the calls by which it names a conversation.
TITLES = {"x-codex-turn-metadata": '{"request_kind": "title"}'}

FAULTS = [
    Fault(
        "agent timeouts as next state",
        days(Day(turns=3, replies=TIMEOUTS)),
        days(Day(turns=3, replies=INTERRUPTIONS)),
    ),
    Fault(
        "session timeout too short",
        days(Day(turns=3, gap_s=1.2), SHORT),
        days(Day(turns=3, gap_s=2.0), ALMOST),
    ),
    Fault(
        "no next states",
        days(Day(turns=1), ALMOST, conversations=8, wait_s=3.0),
        days(Day(turns=3, remembers=False, replies=("What is a lamp?", "What is a road?")), ALMOST, wait_s=3.0),
    ),
    Fault("all turns side calls", days(Day(turns=3, headers=SIDE)), days(Day(turns=3, headers=TITLES))),
]
