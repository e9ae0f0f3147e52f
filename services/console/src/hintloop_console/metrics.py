"""The console's own metrics, read where they stand when somebody scrapes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hintloop_console.diagnosis import LookFailures
from hintloop_console.loop_view import LoopView
from hintloop_console.reader import Reader


class ConsoleCollector(Collector):
    """``hintloop_console_…``."""

    def __init__(self, reader: Reader, view: LoopView, failures: LookFailures) -> None:
        """Read from these."""
        self._reader, self._view, self._failures = reader, view, failures

    def collect(self) -> Iterator[Metric]:
        """What was read, what could not be, and who listens."""
        reader = self._reader
        yield CounterMetricFamily(
            "hintloop_console_history_entries", "Entries of the history that were read.", value=reader.num_read
        )
        yield CounterMetricFamily(
            "hintloop_console_history_unreadable", "Entries that could not be read.", value=reader.num_unreadable
        )
        yield GaugeMetricFamily(
            "hintloop_console_history_away", "1 while the history cannot be read.", value=int(reader.away is not None)
        )
        yield GaugeMetricFamily(
            "hintloop_console_listeners", "Pages that listen for events.", value=self._view.watchers
        )
        failed = CounterMetricFamily(
            "hintloop_console_look_failures", "Errors while causes were looked for.", labels=["place"]
        )
        for place, number in self._failures.counts.items():
            failed.add_metric([place], number)
        yield failed
