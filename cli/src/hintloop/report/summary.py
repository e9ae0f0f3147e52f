"""A run in numbers: what its tables hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hintloop.report.runs import Run
from hintloop.report.tables import Table
from hintloop.report.token_classes import CLASSES, classes_of

#: An advantage beyond this is a token that one of the two thinks all but impossible, nats.
FAR = 10.0
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
#: Places in an answer, by their first.
POSITIONS = (0, 1, 4, 16, 64, 256)
NUM_HINTS = 10
#: Steps whose mean stands for the beginning and for the end of a run.
ENDS_STEPS = 5

#: Tokens of a run in groups: a name, and ``[N]`` whether each belongs to it.
Groups = list[tuple[str, NDArray[np.bool_]]]

#: Figures of a step that are compared between the beginning and the end, and what they say.
FIGURES = {
    "loss": "loss",
    "loss_policy": "loss, policy part",
    "loss_kl": "loss, KL part",
    "loss_entropy": "loss, entropy part",
    "kl": "KL against the first weights, nats",
    "score_mean": "score by the judge",
    "teacher_minus_student_mean": "teacher − student, nats a token",
    "teacher_minus_student_share_above_10": "|teacher − student| above 10, share of tokens",
    "advantage_mean": "advantage, mean",
    "advantage_std": "advantage, deviation",
    "advantage_rl_mean": "advantage, what the score gives",
    "advantage_opd_mean": "advantage, what the teacher gives",
    "engine_difference_abs_mean": "trainer − engine, mean |difference|, nats",
    "engine_difference_max": "trainer − engine, largest |difference|, nats",
    "tis_share": "share of tokens with importance weights",
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
    values, title = run.tokens.advantages, f"Advantages by token, {run.first_steps}"
    if not len(values):
        return Table(title, ("", "nats"), [])
    rows = [
        ("tokens", f"{len(values):,}"),
        ("mean ± deviation", f"{values.mean():+.4f} ± {values.std():.4f}"),
        *((f"percentile {p}", f"{value:+.4f}") for p, value in _percentiles(values)),
        ("above 0 / below 0", f"{(values > 0).mean():.1%} / {(values < 0).mean():.1%}"),
        (f"|teacher − student| above {FAR:g}", f"{(np.abs(run.tokens.gaps) > FAR).mean():.2%}"),
    ]
    return Table(title, ("", "nats"), rows)


def _percentiles(values: NDArray[np.float64]) -> list[tuple[int, float]]:
    return list(zip(PERCENTILES, np.percentile(values, PERCENTILES).tolist(), strict=True))


def by_class(run: Run, classify: Callable[[int], str]) -> Table:
    """Advantages by what kind of text a token is."""
    return _grouped("Advantages by kind of token", "kind", run, class_groups(run, classify))


def by_position(run: Run) -> Table:
    """Advantages by place in the answer."""
    return _grouped("Advantages by place in the answer", "place", run, position_groups(run))


def class_groups(run: Run, classify: Callable[[int], str]) -> Groups:
    """Which tokens are of which kind of text."""
    classes = np.asarray(classes_of(run.tokens.ids.tolist(), classify))
    return [(name, classes == name) for name in CLASSES]


def position_groups(run: Run) -> Groups:
    """Which tokens stand at which place."""
    bounds = [*POSITIONS, np.iinfo(np.int64).max]
    groups = []
    for first, after in itertools.pairwise(bounds):
        name = (
            f"{first}" if after == first + 1 else f"{first} to {after - 1}" if after < bounds[-1] else f"from {first}"
        )
        groups.append((name, (run.tokens.positions >= first) & (run.tokens.positions < after)))
    return groups


def _grouped(title: str, first: str, run: Run, groups: Groups) -> Table:
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
    return Table(f"Hints that were most often given, {run.first_steps}", ("hint", "times", "share"), rows)


def hint_statistics(run: Run) -> Table:
    """How many hints there were, how long, how alike."""
    total, rows = sum(run.hints.values()), []
    if total:
        lengths = np.asarray([len(hint) for hint in run.hints.elements()])
        short, middle, long = np.percentile(lengths, (5, 50, 95))
        commonest = run.hints.most_common(1)[0][1]
        rows = [
            ("kept answers with a hint", f"{total} of {run.num_answers} ({total / run.num_answers:.0%})"),
            ("different hints", f"{len(run.hints)} ({len(run.hints) / total:.0%} of those given)"),
            ("share of the commonest", f"{commonest / total:.0%}"),
            ("characters, mean", f"{lengths.mean():.0f}"),
            (
                "characters, 5th / 50th / 95th percentile, longest",
                f"{short:.0f} / {middle:.0f} / {long:.0f}, {lengths.max()}",
            ),
        ]
    return Table(f"Hints, {run.first_steps}", ("", ""), rows)


def drops(run: Run) -> Table:
    """Turns that did not become a gradient."""
    found = run.pipeline.drops if run.pipeline is not None else {}
    if found:
        captured = run.pipeline.captured if run.pipeline is not None else 0
        rows = [
            (reason, str(count), f"{count / captured:.1%}" if captured else "")
            for reason, count in sorted(found.items(), key=lambda item: -item[1])
        ]
        return Table("Turns that were dropped", ("reason", "turns", "of those captured"), rows)
    rows = [(reason, str(count), "") for reason, count in sorted(run.drops.items(), key=lambda item: -item[1])]
    return Table("Samples that the trainer dropped", ("reason", "samples", ""), rows)


def funnel(run: Run) -> Table:
    """What became of all turns."""
    steps = run.pipeline.steps if run.pipeline is not None else {}
    return Table("Funnel", ("step", "turns"), [(name, f"{count:,}") for name, count in steps.items() if count])


def preference(run: Run) -> Table:
    """How often answers were as the user wants them, before and after."""
    found, rows = run.preference, []
    if found is not None:
        for name, label in (("satisfied", "satisfied"), ("joint", "satisfied and on topic")):
            ends = [
                f"{end[name]:.0%} [{end[f'{name}_ci'][0]:.0%}, {end[f'{name}_ci'][1]:.0%}]"
                for end in (found.before, found.after)
            ]
            rows.append((f"{label}, n = {found.after['n']}", *ends))
    return Table("Held-out answers as the user wants them, with 95 % intervals", ("", "before", "after"), rows)


def settings(run: Run) -> Table:
    """What was in force in the last step, as the trainer read it back from the loss and the optimizer."""
    newest = run.steps[-1]
    named = {name.removeprefix("effective_"): value for name, value in newest.items() if name.startswith("effective_")}
    rows = [(name, str(value)) for name, value in named.items() if value is not None]
    return Table("In force", ("", "value"), rows)


def tables(run: Run, classify: Callable[[int], str]) -> list[Table]:
    """All tables that have a row."""
    found = [
        preference(run),
        *trained_tables(run, classify),
        hint_statistics(run),
        hints(run),
        funnel(run),
        drops(run),
        settings(run),
    ]
    return [table for table in found if table.rows]


def trained_tables(run: Run, classify: Callable[[int], str]) -> list[Table]:
    """What the trainer's own files tell, as far as it has a row."""
    found = [progress(run), distribution(run), by_class(run, classify), by_position(run)]
    return [table for table in found if table.rows]


def answer_means(run: Run) -> NDArray[np.float64]:
    """Mean advantage of each kept answer that has a token, nats.

    Tokens of one answer hang together: a test of chance may count answers alone.
    """
    starts = np.flatnonzero(run.tokens.positions == 0)
    if not len(starts):
        return np.zeros(0)
    totals = np.add.reduceat(run.tokens.advantages, starts)
    return np.asarray(totals / np.diff([*starts, len(run.tokens.advantages)]), np.float64)


def comparison(run: Run, other: Run) -> Table:
    """Two runs at their ends, figure by figure."""
    rows = []
    for name, label in FIGURES.items():
        ends = [one.figure(name)[1][-ENDS_STEPS:] for one in (run, other)]
        if all(len(values) for values in ends):
            last, others = (float(values.mean()) for values in ends)
            rows.append((label, _number(last), _number(others), _number(last - others)))
    mine, theirs = answer_means(run), answer_means(other)
    if len(mine) and len(theirs):
        from scipy.stats import ks_2samp

        found = ks_2samp(mine, theirs)
        label = "advantages, means by answer: largest difference of the two distributions (Kolmogorov–Smirnov)"
        rows.append((label, "", "", f"{found.statistic:.3f}"))
        rows.append(("its p: how likely so much is by chance", "", "", f"{found.pvalue:.2g}"))
    return Table(f"Last steps, up to {ENDS_STEPS}", ("", run.name, other.name, "difference"), rows)


def _number(value: Any) -> str:
    return f"{float(value):.4g}"
