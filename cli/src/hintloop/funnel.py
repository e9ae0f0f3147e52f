"""The funnel: what became of every captured turn. Reading it, and showing it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hintloop_contract.broker import Broker, StreamCounts, WeightsState
from hintloop_contract.diagnosis.alarms import AlarmState
from hintloop_contract.diagnosis.causes import EXPLANATIONS, Cause
from hintloop_contract.streams import FUNNEL, STREAMS
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hintloop.terminal import harmless


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at a deployment. ``drops`` are by ``stage:reason``."""

    steps: dict[str, int] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)
    streams: dict[str, StreamCounts] = field(default_factory=dict)
    weights: WeightsState = field(default_factory=WeightsState)
    trainer: dict[str, str] = field(default_factory=dict)
    engines: dict[str, str] = field(default_factory=dict)
    alarms: AlarmState = field(default_factory=AlarmState)

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "funnel": self.steps,
            "dropped": self.drops,
            "streams": {name: {"length": c.length, "pending": c.pending} for name, c in self.streams.items()},
            "weights": {"current": self.weights.current, "updating": self.weights.updating},
            "trainer": self.trainer,
            "engines": self.engines,
            "alarms": {"looked_ms": self.alarms.looked_ms, "active": msgspec.to_builtins(self.alarms.active)},
        }

    def num_dropped(self, stage: str) -> int:
        """Turns dropped at a stage."""
        return sum(count for reason, count in self.drops.items() if reason.startswith(f"{stage}:"))


async def take(broker: Broker) -> Snapshot:
    """Look at a deployment.

    Raises:
        DependencyError: Redis is away.
    """
    counted = await broker.funnel()
    return Snapshot(
        steps={step: counted.steps.get(step, 0) for step in FUNNEL},
        drops={f"{stage}:{reason}": number for (stage, reason), number in sorted(counted.drops.items()) if number},
        streams={stream.name: await broker.counts(stream) for stream in STREAMS},
        weights=await broker.weights(),
        trainer=await broker.get_status("trainer"),
        engines=await broker.get_status("engines"),
        alarms=await broker.alarms(),
    )


def funnel_table(snapshot: Snapshot) -> Table:
    """Steps, and beside them why turns were dropped."""
    table = Table(title="funnel", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("step")
    table.add_column("turns", justify="right")
    table.add_column("dropped (stage:reason)")
    table.add_column("turns", justify="right")
    drops = sorted(snapshot.drops.items(), key=lambda item: -item[1])
    steps = list(snapshot.steps.items())
    for row in range(max(len(steps), len(drops))):
        step, number = steps[row] if row < len(steps) else ("", "")
        reason, dropped = drops[row] if row < len(drops) else ("", "")
        table.add_row(step, str(number), Text(harmless(reason)), str(dropped))
    return table


def _pairs(title: str, values: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False, show_header=False)
    for name, value in values.items():
        table.add_row(Text(harmless(name)), Text(harmless(value), overflow="fold"))
    return table


def render(snapshot: Snapshot) -> RenderableType:
    """Everything, for a terminal."""
    streams = Table(title="streams", title_justify="left", show_edge=False, pad_edge=False)
    for column in ("stream", "length", "pending"):
        streams.add_column(column, justify="left" if column == "stream" else "right")
    for name, counts in snapshot.streams.items():
        streams.add_row(name, str(counts.length), str(counts.pending))
    current = "none" if snapshot.weights.current is None else str(snapshot.weights.current)
    updating = "" if snapshot.weights.updating is None else f", publishing {snapshot.weights.updating}"
    parts: list[RenderableType] = [funnel_table(snapshot), "", streams, "", f"weights: version {current}{updating}"]
    if snapshot.trainer:
        parts += ["", _pairs("trainer", snapshot.trainer)]
    if snapshot.engines:
        parts += ["", _pairs("engines", snapshot.engines)]
    return Group(*parts, "", alarm_lines(snapshot.alarms))


def alarm_lines(alarms: AlarmState) -> Text:
    """The alarms that stand, each with what was seen and the fix."""
    if alarms.looked_ms is None:
        return Text("alarms: nobody looks (they are raised by the console)", style="dim")
    if not alarms.active:
        return Text("alarms: none", style="green")
    lines = Text(f"alarms: {len(alarms.active)}", style="bold")
    known = set(Cause)
    for alarm in alarms.active:
        minutes = max(0, alarms.looked_ms - alarm.since_ms) / 60_000
        style = "bold red" if alarm.grave else "yellow"
        lines.append(f"\n  {alarm.cause} for {minutes:.0f} min: {harmless(alarm.seen)}", style=style)
        if alarm.cause in known:
            lines.append(f"\n    fix: {EXPLANATIONS[Cause(alarm.cause)].fix}", style="dim")
    return lines
