"""`/metrics` of the trainer: the last step's figures and what the run has done so far. Names begin with
``hintloop_trainer_``.

Every figure of a step is a gauge by its name; seconds by phase, coefficients and drops by reason have a label. What
a step does not have (no sample had a teacher, say) is absent, and not what an earlier step said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from hintloop_trainer.metrics.sink import Metrics

PREFIX = "hintloop_trainer_"
#: Steps take from parts of a second to many minutes.
BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


@dataclass(frozen=True, slots=True)
class Labelled:
    """Figures that share a name and differ in a label."""

    prefix: str
    """Of the figure's name; what follows is the label's value."""
    name: str
    label: str
    about: str


LABELLED = (
    Labelled("seconds_", "phase_seconds", "phase", "Seconds of the last step by phase"),
    Labelled("effective_", "effective", "coefficient", "Coefficients in force, read back from the loss"),
    Labelled("dropped_", "dropped", "reason", "Samples this run dropped, by reason"),
)


class StepCollector(Collector):
    """The last step's figures."""

    def __init__(self) -> None:
        """Nothing until the first step."""
        self.last: Metrics = {}

    def collect(self) -> Iterator[Metric]:
        """One gauge a figure; text as labels of one info metric."""
        numbers = {name: float(value) for name, value in self.last.items() if isinstance(value, int | float)}
        for labelled in LABELLED:
            family = GaugeMetricFamily(PREFIX + labelled.name, labelled.about, labels=[labelled.label])
            for name in [name for name in numbers if name.startswith(labelled.prefix)]:
                family.add_metric([name.removeprefix(labelled.prefix)], numbers.pop(name))
            yield family
        taken = {"method", *(labelled.name for labelled in LABELLED)}
        for name, value in numbers.items():
            # A page on which two families have one name is read by nobody.
            plain = metric_name(name)
            while plain in taken:
                plain = f"custom_{plain}"
            taken.add(plain)
            yield GaugeMetricFamily(PREFIX + plain, f"{_line(name)} of the last step", value=value)
        text = {metric_name(name): value for name, value in self.last.items() if isinstance(value, str)}
        yield InfoMetricFamily(PREFIX + "method", "What is trained, in words", value=text)


def metric_name(name: str) -> str:
    """``name`` as Prometheus allows it: a custom loss may call its figures anything."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _line(name: str) -> str:
    return " ".join(name.split())


class PrometheusSink:
    """Counters over the run, and the last step's figures."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register in ``registry``, or in a new one."""
        self.registry = registry if registry is not None else CollectorRegistry()
        self._collector = StepCollector()
        self.registry.register(self._collector)

        def counter(name: str, about: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(PREFIX + name, about, labels, registry=self.registry)

        self._steps = counter("steps", "Optimizer steps made by this run")
        self._samples = counter("samples_trained", "Samples that steps of this run were made with")
        self._tokens = counter(
            "tokens", "Tokens of this run's steps, read (prompts and answers) and trained", ("kind",)
        )
        self._seconds = Histogram(
            PREFIX + "step_seconds", "Seconds of a step with all its phases", buckets=BUCKETS, registry=self.registry
        )

    def begin(self, step: int) -> None:
        """Counters count work; they do not go back."""

    def write(self, metrics: Metrics) -> None:
        """Take one step's figures."""
        self._collector.last = dict(metrics)
        self._steps.inc()
        self._samples.inc(_number(metrics.get("samples")))
        for kind in ("read", "trained"):
            self._tokens.labels(kind).inc(_number(metrics.get(f"tokens_{kind}")))
        self._seconds.observe(sum(_number(value) for name, value in metrics.items() if name.startswith("seconds_")))

    def close(self) -> None:
        """Nothing is kept back."""


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
