"""A run's plots, as SVG to be set into a page. Two runs share one plot where both are given."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hintloop.report.runs import Run
from hintloop.report.summary import FAR

SIZE_INCHES = (6.4, 2.6)
#: Steps over which a line is smoothed; the values themselves stay visible behind it.
SMOOTHED = 5
COLOURS = ("#2b6cb0", "#c05621")
NUM_BINS = 81


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot with its heading."""

    title: str
    svg: str


#: Plots over steps: heading, label of the axis, figures.
LINES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Loss", "loss", ("loss", "loss_policy", "loss_kl", "loss_entropy")),
    ("Score by the judge", "mean score", ("score_mean",)),
    ("Teacher − student", "nats a token", ("teacher_minus_student_mean",)),
    ("Advantage, 5th to 95th percentile", "nats", ("advantage_p5", "advantage_p50", "advantage_p95")),
    ("Answer length", "tokens", ("response_length",)),
    ("Entropy", "nats", ("entropy",)),
    ("Trainer − engine", "mean |difference|, nats", ("engine_difference_abs_mean",)),
)
STYLES = ("-", "--", ":", "-.")


def plots(runs: Sequence[Run]) -> list[Plot]:
    """Everything that the runs have figures for."""
    found = []
    for title, label, names in LINES:
        if any(len(run.figure(name)[0]) for run in runs for name in names):
            found.append(_plot(title, partial(_lines, runs=runs, names=names, label=label)))
    if any(len(run.tokens.advantages) for run in runs):
        found.append(_plot("Advantages by token", partial(_histogram, runs=runs)))
    return found


def _plot(title: str, draw: Callable[[Axes], None]) -> Plot:
    # No display, no global state: a figure of its own. The same run gives the same file.
    with mpl.rc_context({"svg.hashsalt": "hintloop", "svg.fonttype": "none", "font.size": 9, "text.parse_math": False}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return Plot(title, text[text.index("<svg") :])


def _lines(axes: Axes, runs: Sequence[Run], names: Sequence[str], label: str) -> None:
    several = sum(bool(len(runs[0].figure(name)[0])) for name in names) > 1
    for run, colour in zip(runs, COLOURS, strict=False):
        for name, style in zip(names, STYLES, strict=False):
            steps, values = run.figure(name)
            if not len(steps):
                continue
            words = [word for word, wanted in ((run.name, len(runs) > 1), (name, several)) if wanted]
            axes.plot(steps, values, color=colour, alpha=0.3, linewidth=0.8, linestyle=style)
            axes.plot(steps, _smooth(values), color=colour, linestyle=style, label=" ".join(words) or None)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(label)
    if len(runs) > 1 or several:
        axes.legend(frameon=False, fontsize=8)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Mean of each value and those before it, up to :data:`SMOOTHED`."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - SMOOTHED)
    smoothed: np.ndarray = (sums[ends] - sums[begins]) / (ends - begins)
    return smoothed


def _histogram(axes: Axes, runs: Sequence[Run]) -> None:
    bins = np.linspace(-FAR, FAR, NUM_BINS)
    for run, colour in zip(runs, COLOURS, strict=False):
        values = np.clip(run.tokens.advantages, -FAR, FAR)
        if len(values):
            weights = np.full(len(values), 1 / len(values))
            axes.hist(values, bins.tolist(), weights=weights, color=colour, alpha=0.55, label=run.name)
    axes.set_yscale("log")
    axes.set_xlabel(f"advantage, nats (what lies further out counts at ±{FAR:g})")
    axes.set_ylabel("share of tokens")
    if len(runs) > 1:
        axes.legend(frameon=False, fontsize=8)
