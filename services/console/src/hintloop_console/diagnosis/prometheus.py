"""Alarms as metrics, from the state that was read last: scraping asks nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hintloop_contract.diagnosis.alarms import AlarmState
from hintloop_contract.diagnosis.causes import Cause
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class AlarmCollector(Collector):
    """``hintloop_alarm{cause}``: 1 while an alarm stands, 0 while it does not; absent while nobody looks."""

    def __init__(self, state: Callable[[], AlarmState | None]) -> None:
        """``state`` gives what is known now."""
        self._state = state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Every cause that may become an alarm."""
        family = GaugeMetricFamily("hintloop_alarm", "1 while this cause is an alarm.", labels=["cause"])
        state = self._state()
        if state is not None and state.looked_ms is not None:
            active = {alarm.cause for alarm in state.active}
            for cause in Cause:
                family.add_metric([str(cause)], float(cause in active))
        yield family
