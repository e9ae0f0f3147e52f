"""The judge's metrics, in a registry of its own or one that is given."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram


class JudgeMetrics:
    """Counters and times. Names begin with ``hintloop_judge_``."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register in ``registry``, or in a new one."""
        self.registry = registry if registry is not None else CollectorRegistry()
        self.turns = Counter(
            "hintloop_judge_turns", "Turns by what became of them", ["outcome"], registry=self.registry
        )
        self.votes = Counter(
            "hintloop_judge_votes", "Votes by question and outcome", ["question", "outcome"], registry=self.registry
        )
        self.scores = Counter("hintloop_judge_scores", "Judgements by score", ["score"], registry=self.registry)
        self.hints_rejected = Counter(
            "hintloop_judge_hints_rejected", "Hints that could not be used", ["reason"], registry=self.registry
        )
        self.seconds = Histogram("hintloop_judge_seconds", "Time to judge one turn", registry=self.registry)
