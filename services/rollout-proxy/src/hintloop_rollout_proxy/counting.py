"""Counters and histograms for what every request does: plain numbers, made into metrics when somebody reads them.

`prometheus_client` takes a lock for each number; here everything happens in one thread, some ten numbers a request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class LoopCounter(Collector):
    """A counter with labels, for one thread."""

    def __init__(self, name: str, text: str, labels: Sequence[str], *, registry: CollectorRegistry) -> None:
        """Like ``prometheus_client.Counter``."""
        self._name, self._text, self._labelnames = name, text, tuple(labels)
        self._counts: Counter[tuple[str, ...]] = Counter()
        registry.register(self)

    def inc(self, *labels: str) -> None:
        """Count one."""
        self._counts[labels] += 1

    def describe(self) -> Iterator[CounterMetricFamily]:
        """What it is called."""
        yield CounterMetricFamily(self._name, self._text, labels=self._labelnames)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What was counted."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labelnames)
        for labels, count in self._counts.items():
            family.add_metric(labels, count)
        yield family


class LoopHistogram(Collector):
    """A histogram without labels, for one thread."""

    def __init__(self, name: str, text: str, *, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        """Like ``prometheus_client.Histogram``; ``buckets`` are upper bounds in rising order, without infinity."""
        self._name, self._text, self._bounds = name, text, tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """What it is called."""
        yield HistogramMetricFamily(self._name, self._text)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What was observed."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric([], list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)
        yield family
