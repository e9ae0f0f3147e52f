"""The teacher's metrics, in a registry of its own or one that is given."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram


class TeacherMetrics:
    """Counters and times. Names begin with ``hintloop_teacher_``."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register in ``registry``, or in a new one."""
        self.registry = registry if registry is not None else CollectorRegistry()
        self.turns = Counter(
            "hintloop_teacher_turns", "Turns by what became of them", ["outcome"], registry=self.registry
        )
        self.opd_parts_dropped = Counter(
            "hintloop_teacher_opd_parts_dropped",
            "Turns that went on with their score alone, by why the hint could not be taught",
            ["reason"],
            registry=self.registry,
        )
        self.tokens = Counter("hintloop_teacher_scored_tokens", "Response tokens scored", registry=self.registry)
        self.seconds = Histogram("hintloop_teacher_seconds", "Time to teach one turn", registry=self.registry)
