"""What a step reports: one flat dictionary, in a JSON lines file, in the logs, and in the trainer's status."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from hintloop_trainer.learner import StepResult
from hintloop_trainer.samples import Held
from hintloop_trainer.tally import Moments

Metrics = dict[str, float | int | str | None]

#: Names taken from the tally as means over tokens, and how they are reported.
MEANS = {
    "entropy": "entropy",
    "response_length": "response_length",
    "teacher_minus_student": "teacher_minus_student_mean",
    "engine_difference": "engine_difference_mean",
    "engine_difference_abs": "engine_difference_abs_mean",
    "tis_weight": "tis_weight_mean",
    "tis_applied": "tis_share",
    "score": "score_mean",
}
_OWN = {*MEANS, "advantage"}


def advantage_metrics(moments: Moments, prefix: str) -> Metrics:
    """Mean, deviation and signs of advantages over trained tokens; empty when there were none."""
    if not moments.count:
        return {}
    return {
        f"{prefix}mean": moments.mean,
        f"{prefix}std": moments.std,
        f"{prefix}share_positive": moments.share_positive,
        f"{prefix}share_negative": moments.share_negative,
    }


def step_metrics(result: StepResult, held: Sequence[Held], staleness: Sequence[int], run: Moments) -> Metrics:
    """Everything one step has to say. ``run`` holds the advantages of the run so far, this step's included."""
    tally = result.tally
    metrics: Metrics = {
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        **advantage_metrics(tally.of("advantage"), "advantage_"),
        **advantage_metrics(run, "run_advantage_"),
    }
    for name, reported in MEANS.items():
        if tally.of(name).count:
            metrics[reported] = tally.of(name).mean
    if tally.of("engine_difference").count:
        metrics["engine_difference_max"] = tally.of("engine_difference").largest
    metrics |= {name: tally.of(name).mean for name in list(tally.moments) if name not in _OWN}
    seconds = sum(result.seconds.values())
    metrics |= {
        "samples": len(held),
        "tokens_trained": result.num_tokens,
        "tokens_read": result.num_read,
        "tokens_per_second": result.num_read / seconds if seconds else 0.0,
        "staleness_mean": sum(staleness) / len(staleness),
        "staleness_max": max(staleness),
    }
    metrics |= {f"seconds_{name}": value for name, value in result.seconds.items()}
    metrics |= {f"effective_{name}": value for name, value in result.effective.items()}
    return metrics


def shown(metrics: Metrics) -> Metrics:
    """The metrics with floats rounded for reading."""
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in metrics.items()}


class MetricsFile:
    """Appends one JSON object a step."""

    def __init__(self, path: Path) -> None:
        """Append to ``path``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path

    def write(self, metrics: Metrics) -> None:
        """Append one line, stamped with this host's time in seconds."""
        with self._path.open("a") as file:
            file.write(json.dumps({"time_s": time.time(), **metrics}) + "\n")
