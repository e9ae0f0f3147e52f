"""When what happened to one request, and what the metrics make of it. Owns the definition of added latency."""

from __future__ import annotations

from time import perf_counter

from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.versions import VersionView


class Timing:
    """Moments of one request, in seconds of ``perf_counter``; 0 where it did not come to that.

    ``arrived``: its body was whole. ``asked``: the engine was asked, for the first time. ``received``: the engine's
    first bytes for the client, or its whole answer where that is one document, were here. ``answered``: they were sent.
    """

    __slots__ = ("answered", "arrived", "asked", "received")

    def __init__(self) -> None:
        """The request's body is whole."""
        self.arrived = perf_counter()
        self.asked = self.received = self.answered = 0.0

    def ask(self) -> None:
        """The engine is asked; that it has to be asked again is not the proxy's own time."""
        if not self.asked:
            self.asked = perf_counter()

    def receive(self) -> None:
        """The engine gave what the client gets first."""
        self.received = perf_counter()

    @property
    def added_s(self) -> float:
        """Seconds that the proxy itself added before the answer's first byte."""
        return (self.asked - self.arrived) + (self.answered - self.received)

    def answer(self, metrics: ProxyMetrics, versions: VersionView) -> None:
        """The client gets its first bytes."""
        self.answered = perf_counter()
        metrics.first_byte.observe(self.answered - self.arrived)
        metrics.added.observe(self.added_s)
        paused_s = versions.published_within(self.arrived, self.answered)
        if paused_s:
            metrics.pause_wait.observe(paused_s)
