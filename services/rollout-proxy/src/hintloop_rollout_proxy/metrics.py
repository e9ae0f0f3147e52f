"""What the proxy and the linker count, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hintloop_rollout_proxy.counting import LoopCounter, LoopHistogram

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
#: Why a capture is lost.
LOST = ("queue_full", "spool_away", "spool_full", "unencodable", "unreadable", "unscrubbable")


class ProxyMetrics:
    """Prometheus metrics; names begin with ``hintloop_proxy_`` or ``hintloop_linker_``."""

    def __init__(self) -> None:
        """Start at zero."""
        self.registry = CollectorRegistry()
        self._count_requests(self.registry)
        self._count_storing(self.registry)
        self._time_requests(self.registry)
        self._count_linking(self.registry)

    def _count_requests(self, registry: CollectorRegistry) -> None:
        self.requests = LoopCounter(
            "hintloop_proxy_requests", "Requests by path and HTTP status.", ["path", "status"], registry=registry
        )
        #: Requests being answered; whoever answers counts.
        self.num_in_flight = 0
        in_flight = Gauge("hintloop_proxy_in_flight", "Requests being answered.", registry=registry)
        in_flight.set_function(lambda: self.num_in_flight)
        self.refused = Counter(
            "hintloop_proxy_refused",
            "Requests that the proxy answered with an error of its own.",
            ["code"],
            registry=registry,
        )
        self.captured = LoopCounter("hintloop_proxy_captured", "Captures by status.", ["status"], registry=registry)
        self.problems = Counter("hintloop_proxy_problems", "Captures with a problem.", ["reason"], registry=registry)
        self.uncaptured = Counter(
            "hintloop_proxy_uncaptured", "Generating requests served without capture.", ["path"], registry=registry
        )
        self.scrubbed = Counter("hintloop_proxy_scrubbed", "Captures with something masked.", registry=registry)
        self.untranslated = Counter(
            "hintloop_proxy_untranslated",
            "Requests that only the engine's own endpoint can serve: answered, not trained.",
            ["path"],
            registry=registry,
        )
        self.feedback = Counter("hintloop_proxy_feedback", "Feedback taken, by score.", ["score"], registry=registry)

    def _count_storing(self, registry: CollectorRegistry) -> None:
        self.lost = Counter("hintloop_proxy_lost", "Captures lost, by cause.", ["cause"], registry=registry)
        # From 0 on, so that the first one is an increase.
        for cause in LOST:
            self.lost.labels(cause)
        self.spooled = Counter("hintloop_proxy_spooled", "Captures written to the disk spool.", registry=registry)
        self.spool_bytes = Gauge("hintloop_proxy_spool_bytes", "Bytes in the disk spool.", registry=registry)
        self.spool_max_bytes = Gauge(
            "hintloop_proxy_spool_max_bytes", "Most bytes that the disk spool may hold.", registry=registry
        )
        self.spool_captures = Gauge("hintloop_proxy_spool_captures", "Captures in the disk spool.", registry=registry)
        self.spool_torn = Counter(
            "hintloop_proxy_spool_torn", "Spool segments that ended in an unfinished record.", registry=registry
        )
        self.spool_undecodable = Counter(
            "hintloop_proxy_spool_undecodable", "Spooled records that could not be decoded.", registry=registry
        )
        self.spool_away = Counter(
            "hintloop_proxy_spool_away", "Times that the disk spool could not be used.", registry=registry
        )
        self.early_ends = Counter(
            "hintloop_proxy_early_ends",
            "Answers that ended, and feedback that was accepted, before it was stored: a crash just then loses it.",
            registry=registry,
        )
        self.queue = Gauge("hintloop_proxy_queue", "Captures waiting to be written.", registry=registry)

    def _time_requests(self, registry: CollectorRegistry) -> None:
        self.first_byte = LoopHistogram(
            "hintloop_proxy_first_byte_seconds",
            "Seconds from the request's arrival to the answer's first byte.",
            buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
            registry=registry,
        )
        self.added = LoopHistogram(
            "hintloop_proxy_added_seconds",
            "Seconds that the proxy itself added before the answer's first byte.",
            buckets=(0.0002, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.25, 1, 5, 30),
            registry=registry,
        )
        self.pause_wait = Histogram(
            "hintloop_proxy_pause_wait_seconds",
            "Seconds that a request waited for its first byte while weights were being published.",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
            registry=registry,
        )

    def _count_linking(self, registry: CollectorRegistry) -> None:
        self.linked = Counter("hintloop_linker_linked", "Turns released.", registry=registry)
        self.dropped = Counter("hintloop_linker_dropped", "Turns dropped, by reason.", ["reason"], registry=registry)
        self.pending = Gauge("hintloop_linker_pending", "Captures whose turn is undecided.", registry=registry)
        self.gap = Histogram(
            "hintloop_linker_gap_seconds",
            "Seconds from the end of an answer to the arrival of the request that continues it.",
            buckets=(0.1, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 300, 600, 1200, 3600),
            registry=registry,
        )
        self.gap_near_timeout = Counter(
            "hintloop_linker_gap_near_timeout",
            "Requests that came in the last fifth of the session timeout: others will have come too late.",
            registry=registry,
        )
        self.late = Counter(
            "hintloop_linker_late",
            "Requests that go on from a turn whose session had timed out: it was lost.",
            registry=registry,
        )
        self.active = Gauge(
            "hintloop_linker_active", "1 while this process holds the linker's lease.", registry=registry
        )

    def render(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self.registry)
