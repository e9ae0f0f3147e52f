"""Gathers one look from a broker. Reads only."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hintloop_contract.broker import Broker, WeightsState
from hintloop_contract.diagnosis.figures import Gaps, Seen, number
from hintloop_contract.history import HistoryEntry, StepFigures, Told, Trained
from hintloop_contract.messages import Drop, JudgedTurn, LinkedTurn, Sample, Stage, TurnRecord
from hintloop_contract.streams import STREAMS

#: What is remembered of the newest steps, turns and drops.
MOST_STEPS, MOST_TURNS, MOST_DETAILS, MOST_RECORDS = 300, 200, 20, 16
#: How far back the history is read: twice as far each time, until the entries are enough. ``PORTION``: read at once.
SHORTEST_MS, LONGEST_MS = 600_000, 86_400_000
ENOUGH_ENTRIES, PORTION = 300, 100
#: How often weights and engines are read until no release came in between.
MOST_READINGS = 4
#: Of a next state no more is kept: it tells states apart, and what is longer than a notice is none.
MOST_CHARACTERS = 10_000
#: Funnel steps that an entry of the history counts.
COUNTED: Mapping[type, tuple[str, ...]] = {
    LinkedTurn: ("captured", "linked"),
    JudgedTurn: ("judged",),
    Sample: ("scored",),
    Trained: ("batched", "trained"),
}


@dataclass(slots=True)
class Recent:
    """What the history's newest entries say, read in order."""

    since_ms: int = 0
    """Hops from here on are counted in ``funnel`` and ``drops``."""
    funnel: Counter[str] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)
    steps: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    hints: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=MOST_TURNS))
    scores: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_TURNS))
    states: dict[str, str] = field(default_factory=dict)
    """Text of the next state by turn id, oldest first."""
    records: dict[str, tuple[LinkedTurn, TurnRecord]] = field(default_factory=dict)
    """The newest turns by id, oldest first."""
    after: str = "0-0"
    """Id of the newest entry that was read."""

    def add(self, entries: Iterable[HistoryEntry]) -> None:
        """Take entries, oldest first."""
        for entry in entries:
            self.after = entry.entry_id
            message = entry.message
            if entry.time_ms >= self.since_ms and message is not None:
                self._count(message)
            if isinstance(message, LinkedTurn) and entry.record is not None:
                self._turn(message, entry.record)
            if isinstance(message, JudgedTurn):
                self._judged(message)
            elif isinstance(message, StepFigures):
                # What is no number says nothing of the loop, and would make any mean of the steps one that is none.
                figures = {name: value for name, value in message.figures.items() if math.isfinite(value)}
                self.steps.append({"step": float(message.step), **figures})

    def _count(self, message: Told) -> None:
        if isinstance(message, Drop):
            self.drops[f"{message.stage}:{message.reason}"] += 1
            self.funnel["captured"] += message.stage in (Stage.CAPTURE, Stage.LINK)
            return
        for step in COUNTED.get(type(message), ()):
            self.funnel[step] += 1
        if isinstance(message, JudgedTurn) and message.judgement.hint is not None:
            self.funnel["hinted"] += 1

    def _turn(self, turn: LinkedTurn, record: TurnRecord) -> None:
        self.states[turn.turn_id] = next_state_text(record.next_state)[:MOST_CHARACTERS]
        self.records[turn.turn_id] = turn, record
        for kept, most in ((self.states, MOST_TURNS), (self.records, MOST_RECORDS)):
            while len(kept) > most:
                del kept[next(iter(kept))]

    def _judged(self, judged: JudgedTurn) -> None:
        judgement = judged.judgement
        if judgement.hint is not None:
            self.hints.append((judgement.hint, self.states.get(judged.turn_id, "")))
        if judgement.score is not None:
            self.scores.append(judgement.score)


def next_state_text(raw: bytes) -> str:
    """The words of a next state: its messages' texts, joined; empty where it cannot be read."""
    try:
        messages = json.loads(raw)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(messages, list):
        return ""
    return "\n".join(text for message in messages if (text := _text(message)))


def _text(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") or part.get("content") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


async def recent_of(broker: Broker) -> Recent:
    """What the newest history says: of the ten minutes before its newest entry, or of longer when that is little.

    Counts in it are of the last ten minutes alone.

    Raises:
        DependencyError: Redis is away.
    """
    since_ms = await broker.time_ms() - SHORTEST_MS
    newest_ms = int((await broker.history_state()).newest_id.partition("-")[0])
    window_ms = SHORTEST_MS
    while True:
        recent, count = Recent(since_ms, after=f"{max(0, newest_ms - window_ms)}-0"), 0
        # To the very end: what is kept is bounded, and the newest is what counts.
        while entries := await broker.history(recent.after, PORTION):
            recent.add(entries)
            count += len(entries)
        if count >= ENOUGH_ENTRIES or window_ms >= min(LONGEST_MS, newest_ms):
            return recent
        window_ms *= 2


def _details(drops: Iterable[Drop]) -> dict[str, list[str]]:
    details: dict[str, list[str]] = {}
    for drop in drops:
        texts = details.setdefault(f"{drop.stage}:{drop.reason}", [])
        if len(texts) < MOST_DETAILS:
            texts.append(drop.detail)
    return details


async def _released(broker: Broker, current: int | None) -> list[tuple[int, str]]:
    """Step and hash of the released version's parent and of itself, as far as Redis knows them."""
    found: list[tuple[int, str]] = []
    version: str = "" if current is None else str(current)
    while version and len(found) < 2:
        notes = await broker.version_notes(int(version))
        if not notes.get("step"):
            break
        found.append((int(notes["step"]), notes.get("weights_hash", "")))
        version = notes.get("parent", "")
    return found[::-1]


async def _serving(broker: Broker) -> tuple[WeightsState, dict[str, str]]:
    """The weights' state, and what each engine serves under it: a release in between would show an engine as behind.

    Where releases come faster than Redis answers, the newest of both after :data:`MOST_READINGS`.
    """
    weights, engines = await broker.weights(), await broker.get_status("engines")
    for _ in range(MOST_READINGS - 1):
        again = await broker.weights()
        if again == weights:
            break
        weights, engines = again, await broker.get_status("engines")
    return weights, engines


async def look(broker: Broker, recent: Recent) -> Seen:
    """One look, with counts since the deployment began.

    Raises:
        DependencyError: Redis is away.
    """
    counted = await broker.funnel()
    weights, engines = await _serving(broker)
    return Seen(
        funnel=counted.steps,
        drops={f"{stage}:{reason}": count for (stage, reason), count in counted.drops.items()},
        details=_details(await broker.newest_drops(MOST_TURNS)),
        streams={stream.name: await broker.counts(stream) for stream in STREAMS},
        trainer=await broker.get_status("trainer"),
        weights=weights,
        engines=engines,
        steps=list(recent.steps),
        hashes=await _released(broker, weights.current),
        hints=list(recent.hints),
        scores=list(recent.scores),
        next_states=list(recent.states.values()),
        gaps=gaps_of(await broker.get_status("linker")),
        redis=await broker.redis_room(),
    )


def gaps_of(status: Mapping[str, str]) -> Gaps | None:
    """What the linker wrote about gaps; ``None`` when it wrote nothing."""
    if not status:
        return None
    found = {name: number(text) or 0.0 for name, text in status.items()}
    return Gaps(
        int(found.get("gaps", 0)),
        int(found.get("gaps_near", 0)),
        found.get("gap_longest_s", 0.0),
        int(found.get("late", 0)),
        found.get("late_longest_s", 0.0),
    )


def since(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Counts of a window: what was added to ``before``; all of ``now`` when they began anew meanwhile."""
    if any(now.get(name, 0) < count for name, count in before.items()):
        return dict(now)
    return {name: count - before.get(name, 0) for name, count in now.items()}
