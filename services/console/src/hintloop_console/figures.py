"""The loop as Prometheus metrics, from the look that was taken last: scraping asks nobody. Names begin with
``hintloop_`` alone: they are the deployment's, and not the console's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hintloop_contract.config.schema import Config
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hintloop_console.loop_view import Look


class LoopCollector(Collector):
    """Funnel, drops, streams, versions and limits. Nothing but ``hintloop_redis_away`` while Redis was never seen."""

    def __init__(self, look: Callable[[], Look], config: Config) -> None:
        """``look`` gives the look that was taken last; limits are ``config``'s."""
        self._look = look
        self._limits = {
            "admission": config.admission_limit,
            "staleness_steps": config.training.max_staleness_steps,
            "train_batch_size": config.training.train_batch_size,
        }

    def collect(self) -> Iterator[Metric]:
        """Everything that there is to say; while Redis is away, that alone."""
        look = self._look()
        away = look.away is not None or look.loop is None
        yield GaugeMetricFamily("hintloop_redis_away", "1 while the console cannot read Redis.", value=int(away))
        limits = GaugeMetricFamily("hintloop_limit", "What the configuration allows.", labels=["limit"])
        for name, value in self._limits.items():
            limits.add_metric([name], value)
        yield limits
        # Old figures would look like a loop that stands still.
        if not away and look.loop is not None:
            yield from _counted(look.loop)
            yield from _streams(look.loop["streams"])
            yield from _versions(look.loop)


def _counted(loop: Mapping[str, Any]) -> Iterator[Metric]:
    funnel = CounterMetricFamily("hintloop_funnel", "Turns that reached a step of the funnel.", labels=["step"])
    for step, number in loop["funnel"].items():
        funnel.add_metric([step], number)
    yield funnel
    drops = CounterMetricFamily("hintloop_drops", "Turns dropped, by where and why.", labels=["stage", "reason"])
    for place, number in loop["dropped"].items():
        stage, _, reason = place.partition(":")
        drops.add_metric([stage, reason], number)
    yield drops
    paused = int(loop["paused"] is not None)
    yield GaugeMetricFamily("hintloop_paused", "1 while training is paused (hintloop resume ends that).", value=paused)


def _streams(streams: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    lag = GaugeMetricFamily("hintloop_stream_lag", "Messages not yet settled, held ones included.", labels=["stream"])
    pending = GaugeMetricFamily("hintloop_stream_pending", "Messages that a consumer holds.", labels=["stream"])
    consumers = GaugeMetricFamily("hintloop_stream_consumers", "Consumers of the stream's group.", labels=["stream"])
    for name, stream in streams.items():
        lag.add_metric([name], stream["length"])
        pending.add_metric([name], stream["pending"])
        consumers.add_metric([name], len(stream["holders"]))
    yield from (lag, pending, consumers)


def _versions(loop: Mapping[str, Any]) -> Iterator[Metric]:
    weights = loop["weights"]
    if weights["current"] is not None:
        yield GaugeMetricFamily("hintloop_weights_current", "The released version.", value=weights["current"])
    updating = int(weights["updating"] is not None)
    yield GaugeMetricFamily("hintloop_weights_updating", "1 while a version is being published.", value=updating)
    engines = GaugeMetricFamily(
        "hintloop_engine_version", "The version that a policy engine says it serves.", labels=["engine"]
    )
    unknown = GaugeMetricFamily(
        "hintloop_engine_unknown", "1 while a policy engine does not say what it serves.", labels=["engine"]
    )
    for engine, version in loop["engines"].items():
        unknown.add_metric([engine], int(not version))
        if version:
            engines.add_metric([engine], float(version))
    yield from (engines, unknown)
