"""Numbers counted without locks read like those of the client library."""

from __future__ import annotations

from hintloop_rollout_proxy.counting import LoopCounter, LoopHistogram
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

BUCKETS = (0.005, 0.5, 1, 30)


def test_they_read_like_the_librarys_own() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter = LoopCounter("hits", "Hits.", ["path", "status"], registry=ours)
    wanted = Counter("hits", "Hits.", ["path", "status"], registry=theirs)
    histogram = LoopHistogram("took_seconds", "Took.", buckets=BUCKETS, registry=ours)
    wanted_histogram = Histogram("took_seconds", "Took.", buckets=BUCKETS, registry=theirs)
    for path, status in (("/a", "200"), ("/a", "200"), ("/b", "500")):
        counter.inc(path, status)
        wanted.labels(path, status).inc()
    for value in (0.0, 0.005, 0.0051, 0.5, 1.0, 29.0, 31.0, 1e9):
        histogram.observe(value)
        wanted_histogram.observe(value)
    assert samples(ours) == samples(theirs)


def test_nothing_counted_is_nothing_and_zero() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    LoopCounter("hits", "Hits.", ["path"], registry=ours)
    Counter("hits", "Hits.", ["path"], registry=theirs)
    LoopHistogram("took_seconds", "Took.", buckets=BUCKETS, registry=ours)
    Histogram("took_seconds", "Took.", buckets=BUCKETS, registry=theirs)
    assert samples(ours) == samples(theirs)


def samples(registry: CollectorRegistry) -> list[str]:
    """Every line but when a metric was made."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]
