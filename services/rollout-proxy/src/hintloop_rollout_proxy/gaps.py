"""How long agents leave between an answer and what follows it, against the session timeout: measured, said, written."""

from __future__ import annotations

import time
from collections.abc import Iterable

import structlog
from hintloop_contract.broker import Broker

from hintloop_rollout_proxy.linking import Decision, Placed
from hintloop_rollout_proxy.metrics import ProxyMetrics

#: Share of the session timeout from which a gap is near it, and seconds between two warnings of that.
NEAR_TIMEOUT = 0.8
WARN_EVERY_S = 60.0
#: Seconds between two writings of the linker's status.
WRITE_EVERY_S = 1.0

log = structlog.get_logger()


class GapWatch:
    """Counts since this linker began; the counts stand in Redis as the status ``linker``."""

    def __init__(self, broker: Broker, metrics: ProxyMetrics, timeout_s: float) -> None:
        """``timeout_s``: ``rollout.session_timeout_sec``."""
        self._broker = broker
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._num = self._near = self._late = 0
        self._longest_s = self._late_max_s = 0.0
        self._warn_at = self._write_at = 0.0
        self._changed = True

    def observe(self, decisions: Iterable[Decision], late_ms: int | None) -> None:
        """Take what the linker decided about a capture. ``late_ms``: it goes on from a turn that had timed out."""
        for decision in decisions:
            if isinstance(decision, Placed) and decision.gap_ms is not None:
                self._observe(max(0.0, decision.gap_ms / 1000))
        if late_ms is not None:
            self._changed = True
            self._late += 1
            self._late_max_s = max(self._late_max_s, late_ms / 1000)
            self._metrics.late.inc()
            self._warn("a turn came after its session had timed out", late_ms / 1000)

    def _observe(self, gap_s: float) -> None:
        self._changed = True
        self._metrics.gap.observe(gap_s)
        self._num += 1
        self._longest_s = max(self._longest_s, gap_s)
        if gap_s >= NEAR_TIMEOUT * self._timeout_s:
            self._near += 1
            self._metrics.gap_near_timeout.inc()
            self._warn("a turn came just before its session timed out", gap_s)

    def _warn(self, what: str, gap_s: float) -> None:
        if time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + WARN_EVERY_S
            log.warning(
                f"{what}; raise rollout.session_timeout_sec",
                gap_s=round(gap_s, 1),
                session_timeout_sec=self._timeout_s,
            )

    async def write(self) -> None:
        """Write the counts, if they changed and were not written just now. Raises ``DependencyError``."""
        if not self._changed or time.monotonic() < self._write_at:
            return
        self._write_at = time.monotonic() + WRITE_EVERY_S
        fields = {
            "gaps": str(self._num),
            "gaps_near": str(self._near),
            "gap_longest_s": f"{self._longest_s:.3f}",
            "late": str(self._late),
            "late_longest_s": f"{self._late_max_s:.3f}",
            "session_timeout_s": f"{self._timeout_s:g}",
        }
        await self._broker.set_status("linker", fields)
        self._changed = False
