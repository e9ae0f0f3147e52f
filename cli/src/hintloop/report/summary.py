"""A run in numbers: what its tables hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hintloop.report.runs import Run
from hintloop.report.token_classes import CLASSES, classes_of

#: An advantage beyond this is a token that one of the two thinks all but impossible, nats.
FAR = 10.0
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
#: Places in an answer, by their first.
POSITIONS = (0, 1, 4, 16, 64, 256)
NUM_HINTS = 10
#: Steps whose mean stands for the beginning and for the end of a run.
ENDS_STEPS = 5

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a heading and a row of names."""

    title: str
    names: Row
    rows: Sequence[Row]


#: Figures of a step that are compared between the beginning and the end, and what they say.
FIGURES = {
    "loss": "loss",
    "loss_policy": "loss, policy part",
    "loss_kl": "loss, KL part",
    "loss_entropy": "loss, entropy part",
    "score_mean": "score by the judge",
    "teacher_minus_student_mean": "teacher − student, nats a token",
    "advantage_mean": "advantage, mean",
    "advantage_std": "advantage, deviation",
    "engine_difference_abs_mean": "trainer − engine, mean |difference|, nats",
    "entropy": "entropy, nats",
    "response_length": "answer length, tokens",
    "clip_fraction": "share of tokens clipped by PPO",
    "grad_norm": "gradient norm",
    "staleness_mean": "staleness, steps",
    "tokens_per_second": "tokens a second",
}


def progress(run: Run) -> Table:
    """Every figure at the beginning and at the end."""
    rows = []
    for name, label in FIGURES.items():
        _, values = run.figure(name)
        if len(values):
            span = min(ENDS_STEPS, max(1, len(values) // 2))
            rows.append((label, _number(values[:span].mean()), _number(values[-span:].mean())))
    span = min(ENDS_STEPS, max(1, len(run.steps) // 2))
    return Table("From the beginning to the end", ("", f"first {span} step(s)", f"last {span} step(s)"), rows)


def distribution(run: Run) -> Table:
    """Advantages over all kept tokens."""
    values = run.tokens.advantages
    if not len(values):
        return Table("Advantages by token", ("", "nats"), [])
    rows = [
        ("tokens", f"{len(values):,}"),
        ("mean ± deviation", f"{values.mean():+.4f} ± {values.std():.4f}"),
        *((f"percentile {p}", f"{value:+.4f}") for p, value in _percentiles(values)),
        ("above 0 / below 0", f"{(values > 0).mean():.1%} / {(values < 0).mean():.1%}"),
        (f"|teacher − student| above {FAR:g}", f"{(np.abs(run.tokens.gaps) > FAR).mean():.2%}"),
    ]
    return Table("Advantages by token", ("", "nats"), rows)


def _percentiles(values: NDArray[np.float64]) -> list[tuple[int, float]]:
    return list(zip(PERCENTILES, np.percentile(values, PERCENTILES).tolist(), strict=True))


def by_class(run: Run, classify: Callable[[int], str]) -> Table:
    """Advantages by what kind of text a token is."""
    classes = np.asarray(classes_of(run.tokens.ids.tolist(), classify))
    groups = [(name, classes == name) for name in CLASSES]
    return _grouped("Advantages by kind of token", "kind", run, groups)


def by_position(run: Run) -> Table:
    """Advantages by place in the answer."""
    bounds = [*POSITIONS, np.iinfo(np.int64).max]
    groups = []
    for first, after in itertools.pairwise(bounds):
        name = (
            f"{first}" if after == first + 1 else f"{first} to {after - 1}" if after < bounds[-1] else f"from {first}"
        )
        groups.append((name, (run.tokens.positions >= first) & (run.tokens.positions < after)))
    return _grouped("Advantages by place in the answer", "place", run, groups)


def _grouped(title: str, first: str, run: Run, groups: list[tuple[str, NDArray[np.bool_]]]) -> Table:
    rows = []
    for name, inside in groups:
        values = run.tokens.advantages[inside]
        if len(values):
            far = (np.abs(run.tokens.gaps[inside]) > FAR).mean()
            signs = f"{(values > 0).mean():.0%} / {(values < 0).mean():.0%}"
            rows.append((name, f"{len(values):,}", f"{values.mean():+.3f} ± {values.std():.3f}", signs, f"{far:.2%}"))
    return Table(title, (first, "tokens", "mean ± deviation", "above / below 0", f"|gap| above {FAR:g}"), rows)


def hints(run: Run) -> Table:
    """The hints that were most often given."""
    total = sum(run.hints.values())
    rows = [(hint, str(count), f"{count / total:.0%}") for hint, count in run.hints.most_common(NUM_HINTS)]
    title = f"Hints: {total} given, {len(run.hints)} different"
    if run.hints:
        lengths = [len(hint) for hint in run.hints.elements()]
        title += f", {np.mean(lengths):.0f} characters on average (longest {max(lengths)})"
    return Table(title, ("hint", "times", "share"), rows)


def drops(run: Run) -> Table:
    """Samples that did not become a gradient."""
    rows = [(reason, str(count)) for reason, count in sorted(run.drops.items(), key=lambda item: -item[1])]
    return Table("Samples that the trainer dropped", ("reason", "samples"), rows)


def settings(run: Run) -> Table:
    """What was in force in the last step, as the trainer read it back from the loss and the optimizer."""
    newest = run.steps[-1]
    named = {name.removeprefix("effective_"): value for name, value in newest.items() if name.startswith("effective_")}
    rows = [(name, str(value)) for name, value in named.items() if value is not None]
    return Table("In force", ("", "value"), rows)


def tables(run: Run, classify: Callable[[int], str]) -> list[Table]:
    """All tables that have a row."""
    found = [
        progress(run),
        distribution(run),
        by_class(run, classify),
        by_position(run),
        hints(run),
        drops(run),
        settings(run),
    ]
    return [table for table in found if table.rows]


def comparison(run: Run, other: Run) -> Table:
    """Two runs at their ends, figure by figure."""
    rows = []
    for name, label in FIGURES.items():
        ends = [one.figure(name)[1][-ENDS_STEPS:] for one in (run, other)]
        if all(len(values) for values in ends):
            last, others = (float(values.mean()) for values in ends)
            rows.append((label, _number(last), _number(others), _number(last - others)))
    mine, theirs = run.tokens.advantages, other.tokens.advantages
    if len(mine) and len(theirs):
        from scipy.stats import ks_2samp

        found = ks_2samp(mine, theirs)
        label = "advantages: largest difference of the two distributions (Kolmogorov–Smirnov), p"
        rows.append((label, "", f"{found.pvalue:.2g}", f"{found.statistic:.3f}"))
    return Table(f"Last {ENDS_STEPS} steps", ("", run.name, other.name, "difference"), rows)


def _number(value: Any) -> str:
    return f"{float(value):.4g}"
