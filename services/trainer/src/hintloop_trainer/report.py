"""What a step reports: one flat dictionary. Where it goes is the :mod:`metrics` package's business."""

from __future__ import annotations

from collections.abc import Sequence

from hintloop_trainer.learner import StepResult
from hintloop_trainer.metrics.sink import Metrics
from hintloop_trainer.samples import Held
from hintloop_trainer.tally import Moments, Tally

__all__ = ["Metrics", "advantage_metrics", "shown", "step_metrics"]

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
    "advantage_rl": "advantage_rl_mean",
    "advantage_opd": "advantage_opd_mean",
}
#: Largest magnitudes that are reported, by their name in the tally.
LARGEST = {
    "response_length": "response_length_max",
    "teacher_minus_student": "teacher_minus_student_max",
    "engine_difference": "engine_difference_max",
    "ratio_mean": "ratio_max",
}
#: Names whose distribution is reported: percentiles, and how much lies far out.
DISTRIBUTIONS = ("advantage", "teacher_minus_student", "engine_difference")
#: What the log's line of a step has.
SHOWN = (
    "step",
    "version",
    "loss",
    "kl",
    "grad_norm",
    "advantage_mean",
    "advantage_std",
    "advantage_p5",
    "advantage_p95",
    "teacher_minus_student_mean",
    "engine_difference_abs_mean",
    "ratio_mean",
    "clip_fraction",
    "entropy",
    "response_length",
    "score_mean",
    "staleness_mean",
    "samples",
    "tokens_trained",
    "tokens_per_second",
    "padding_share",
    "shared_share",
    "mfu",
    "seconds_forward_backward",
    "seconds_publish",
)
#: Nats; an advantage beyond this is a token that one of the two thinks all but impossible.
FAR = 10.0
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


def _distribution(tally: Tally, name: str) -> Metrics:
    percentiles = tally.percentiles(name)
    if not percentiles:
        return {}
    metrics: Metrics = {f"{name}_p{percent}": value for percent, value in percentiles.items()}
    return metrics | {f"{name}_share_above_10": tally.share_beyond(name, FAR)}


def _tally_metrics(tally: Tally) -> Metrics:
    """Means, largest and distributions over the step's trained tokens, on all ranks."""
    metrics = advantage_metrics(tally.of("advantage"), "advantage_")
    for name in DISTRIBUTIONS:
        metrics |= _distribution(tally, name)
    metrics |= {reported: tally.of(name).mean for name, reported in MEANS.items() if tally.of(name).count}
    metrics |= {reported: tally.of(name).largest for name, reported in LARGEST.items() if tally.of(name).count}
    for name in [name for name in tally.moments if name not in _OWN]:
        # What a loss of one's own calls like one of ours does not stand in for it.
        metrics[name if name not in metrics else f"custom_{name}"] = tally.of(name).mean
    return metrics


def step_metrics(result: StepResult, held: Sequence[Held], staleness: Sequence[int], run: Moments) -> Metrics:
    """Everything one step has to say. ``run`` holds the advantages of the run so far, this step's included.

    Names, units and what they are taken over stand in `docs/metrics.md`.
    """
    seconds = sum(result.seconds.values())
    work = result.work
    metrics: Metrics = {
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "samples": len(held),
        "tokens_trained": result.num_tokens,
        "tokens_read": work.num_read,
        "tokens_per_second": work.num_read / seconds if seconds else 0.0,
        "padding_share": work.padding_share,
        "shared_share": work.shared_share,
        "flops": work.flops,
        "staleness_mean": sum(staleness) / len(staleness),
        "staleness_max": max(staleness),
    }
    if work.mfu is not None:
        metrics["mfu"] = work.mfu
    own = _tally_metrics(result.tally) | advantage_metrics(run, "run_advantage_")
    metrics |= {name if name not in metrics else f"custom_{name}": value for name, value in own.items()}
    metrics |= work.memory
    metrics |= {f"seconds_{name}": value for name, value in result.seconds.items()}
    metrics |= {f"effective_{name}": value for name, value in result.effective.items()}
    return metrics


def shown(metrics: Metrics) -> Metrics:
    """Of a step's figures those that its line in the log has, rounded; the others stand in the files."""
    found = {name: metrics[name] for name in SHOWN if metrics.get(name) is not None}
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in found.items()}
