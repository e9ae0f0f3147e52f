"""What the services really export: their own registries, made in this process, with a step that a trainer recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hintloop_console.diagnosis import AlarmCollector
from hintloop_console.figures import LoopCollector
from hintloop_console.loop_view import Look
from hintloop_contract.config.schema import Config
from hintloop_contract.diagnosis.alarms import AlarmState
from hintloop_contract.messages import DropReason, Stage
from hintloop_contract.streams import FUNNEL, STREAMS
from hintloop_judge.metrics import JudgeMetrics
from hintloop_rollout_proxy.counting import LoopCounter, LoopHistogram
from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_teacher.metrics import TeacherMetrics
from hintloop_trainer.metrics.prometheus import PrometheusSink
from prometheus_client import CollectorRegistry

STEP = Path(__file__).parents[2] / "fixtures" / "metrics" / "step.json"
#: Figures that only some steps have, each beside where it is made.
SOMETIMES = {
    "memory_cuda_allocated_peak": "services/trainer/src/hintloop_trainer/metrics/memory_use.py",
    "mfu": "services/trainer/src/hintloop_trainer/report.py",
}
#: Values of labels that are no free text.
VALUES: dict[str, frozenset[str]] = {
    "reason": frozenset(map(str, DropReason)),
    "stage": frozenset(map(str, Stage)),
    "stream": frozenset(stream.name for stream in STREAMS),
    "step": frozenset(FUNNEL),
    "limit": frozenset({"admission", "staleness_steps", "train_batch_size"}),
}


class Loop:
    """A loop as the console sees it, with counts that can be raised."""

    def __init__(self) -> None:
        self.count = 0

    def look(self) -> Look:
        """The look now."""
        streams = {stream.name: {"length": 3, "pending": 1, "holders": [{"name": "c"}]} for stream in STREAMS}
        drops = {f"{Stage.JUDGE}:{DropReason.NO_SIGNAL}": self.count, f"{Stage.LINK}:{DropReason.STALE}": self.count}
        loop: dict[str, Any] = {
            "funnel": {step: 10 * self.count for step in FUNNEL},
            "dropped": drops,
            "streams": streams,
            "weights": {"current": 7, "updating": None},
            "engines": {"http://a:1": "7", "http://b:1": "7", "http://c:1": ""},
            "paused": None,
        }
        return Look(loop, AlarmState(looked_ms=1), 7, None)


@dataclass
class Exported:
    """``registries`` by the job that scrapes them; ``names``: labels by sample name."""

    loop: Loop
    registries: dict[str, CollectorRegistry]
    trainer: PrometheusSink
    step: dict[str, Any]
    names: dict[str, frozenset[str]] = field(default_factory=dict)

    def exercise(self) -> None:
        """Count something everywhere."""
        self.loop.count += 1
        self.trainer.write({**self.step, **dict.fromkeys(SOMETIMES, 1.0)})
        for registry in self.registries.values():
            for collector in _collectors(registry):
                for labels in _label_values(getattr(collector, "_labelnames", ())):
                    _count_in(collector, labels)


def _collectors(registry: CollectorRegistry) -> list[Any]:
    found: dict[int, Any] = {}
    for collector in registry._collector_to_names:
        if hasattr(collector, "_labelnames") or isinstance(collector, LoopCounter | LoopHistogram):
            found[id(collector)] = collector
    return list(found.values())


def _count_in(collector: Any, labels: list[str]) -> None:
    if isinstance(collector, LoopCounter):
        collector.inc(*labels)
        return
    child = collector.labels(*labels) if labels else collector
    getattr(child, "inc", getattr(child, "observe", lambda _: None))(1)


def _label_values(names: Sequence[str]) -> Iterator[list[str]]:
    if not names:
        yield []
    elif "outcome" in names:
        for outcome in ("counted", "failed"):
            yield [outcome if name == "outcome" else "score" for name in names]
    else:
        yield [{"status": "200", "kind": "read"}.get(name, name) for name in names]


def exported_by_services() -> Exported:
    """Registries as each service makes them, every metric with a sample."""
    loop, config = Loop(), Config()
    console = CollectorRegistry(auto_describe=False)
    console.register(LoopCollector(loop.look, config))
    console.register(AlarmCollector(lambda: loop.look().alarms))
    trainer = PrometheusSink()
    found = Exported(
        loop,
        {
            "rollout-proxy": ProxyMetrics().registry,
            "judge": JudgeMetrics().registry,
            "teacher": TeacherMetrics().registry,
            "trainer": trainer.registry,
            "console": console,
        },
        trainer,
        json.loads(STEP.read_text()),
    )
    found.exercise()
    for registry in found.registries.values():
        for family in registry.collect():
            for sample in family.samples:
                found.names[sample.name] = found.names.get(sample.name, frozenset()) | frozenset(sample.labels)
    return found
