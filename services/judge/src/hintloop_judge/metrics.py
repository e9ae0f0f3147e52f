"""The judge's metrics, in a registry of its own or one that is given."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram


class JudgeMetrics:
    """Counters and times. Names begin with ``hintloop_judge_``."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register in ``registry``, or in a new one."""
        self.registry = registry if registry is not None else CollectorRegistry()

        def counter(name: str, about: str, labels: list[str]) -> Counter:
            return Counter(f"hintloop_judge_{name}", about, labels, registry=self.registry)

        self.turns = counter("turns", "Turns by what became of them", ["outcome"])
        self.votes = counter("votes", "Votes by question and outcome", ["question", "outcome"])
        self.scores = counter("scores", "Judgements by score", ["score"])
        self.hints_rejected = counter("hints_rejected", "Hints that could not be used", ["reason"])
        self.engine_calls = counter(
            "engine_calls", "Requests to the judge's engine by status, each try one", ["outcome"]
        )
        self.kept = counter("kept_votes", "Questions whose votes were kept from before, or not", ["question", "found"])
        self.settled = counter("settled", "Questions by what settled them under rules_then_llm", ["question", "by"])
        self.seconds = Histogram("hintloop_judge_seconds", "Time to judge one turn", registry=self.registry)
