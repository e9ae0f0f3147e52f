"""The estimate for people: one table, what is there, and what to turn down."""

from __future__ import annotations

from collections.abc import Sequence

from hintloop_trainer.memory.advice import Advice
from hintloop_trainer.memory.capacity import Capacity
from hintloop_trainer.memory.estimate import GIB, Estimate, StageMemory

_WIDTH = 34


def render(estimate: Estimate, capacity: Capacity | None = None, advice: Sequence[Advice] = ()) -> str:
    """Lines of text, in GiB; of many pipeline stages the first, the second and the last."""
    plan = estimate.plan
    shown = list(estimate.stages if plan.pp <= 3 else (*estimate.stages[:2], estimate.stages[-1]))
    layout = f"{plan.world_size} process(es): TP {plan.tp}, PP {plan.pp}, CP {plan.cp}, EP {plan.ep}, DP {plan.dp}"
    where = "GPU" if plan.device == "cuda" else "CPU"
    lines = [
        f"memory of one {where} process, GiB, at most {plan.positions} positions in a micro-batch ({layout})",
        _row("", [f"stage {stage.stage}" for stage in shown]),
    ]
    for name in dict.fromkeys(name for stage in shown for name in stage.held):
        lines.append(_row(name, [_gib(stage.held.get(name, 0.0)) for stage in shown]))
    for name in shown[0].phases:
        lines.append(_row(f"+ during {name}", [_gib(stage.phases[name]) for stage in shown]))
    lines.append(_row("most at once", [_gib(stage.peak) for stage in shown]))
    if estimate.gate_process:
        lines.append(_row("one process for the gate", [_gib(estimate.gate_process)]))
    if any(stage.host for stage in shown):
        lines.append(_row("on the host", [_gib(sum(stage.host.values())) for stage in shown]))
    if capacity is not None:
        lines.append(_there(shown, capacity))
    for number, item in enumerate(advice):
        start = "to turn down, by what it saves:" if number == 0 else ""
        lines.append(f"{start:<{_WIDTH}}{_gib(item.saves):>9}  {item.change}")
    return "\n".join(lines)


def _there(shown: Sequence[StageMemory], capacity: Capacity) -> str:
    host = f"{_gib(capacity.host)} free on this host for {capacity.processes} process(es)"
    return host if capacity.device is None else f"{_gib(capacity.device)} free on the device, {host}"


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<{_WIDTH}}" + "".join(f"{cell:>10}" for cell in cells)


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"
