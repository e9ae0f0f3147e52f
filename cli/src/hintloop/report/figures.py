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
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from hintloop.report.runs import Run
from hintloop.report.summary import FAR, Groups, class_groups, position_groups

SIZE_INCHES = (5.6, 3.1)
#: Characters of a label of which no three fit side by side.
LONG_LABEL = 18
#: Steps over which a line is smoothed; the values themselves stay visible behind it.
SMOOTHED = 5
COLOURS = ("#2b6cb0", "#c05621")
NUM_BINS = 81


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot with its heading."""

    title: str
    svg: str


#: Plots over steps: heading, label of the axis, figures and what they are called.
LINES: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "Loss and its parts",
        "loss",
        {"loss": "loss", "loss_policy": "policy", "loss_kl": "KL", "loss_entropy": "entropy"},
    ),
    ("Score by the judge", "mean score", {"score_mean": "score"}),
    ("Teacher − student", "nats a token", {"teacher_minus_student_mean": "mean"}),
    (
        "Advantage over the steps",
        "nats",
        {"advantage_p95": "95th percentile", "advantage_p50": "median", "advantage_p5": "5th percentile"},
    ),
    (
        "Share of tokens beyond 10 nats",
        "share of tokens",
        {"teacher_minus_student_share_above_10": "|teacher − student|", "advantage_share_above_10": "|advantage|"},
    ),
    ("What score and teacher give", "nats", {"advantage_rl_mean": "score", "advantage_opd_mean": "teacher"}),
    ("Trainer − engine", "mean |difference|, nats", {"engine_difference_abs_mean": "mean"}),
    ("KL against the first weights", "nats", {"kl": "KL"}),
    ("Answer length", "tokens", {"response_length": "length"}),
    ("Entropy", "nats", {"entropy": "entropy"}),
)
#: Plots in which a level below 0 makes no sense.
FROM_ZERO = ("Share of tokens beyond 10 nats", "Trainer − engine", "Answer length", "Entropy")
STYLES = ("-", "--", ":", "-.")


def plots(runs: Sequence[Run], classify: Sequence[Callable[[int], str]]) -> list[Plot]:
    """Everything that the runs have figures for; ``classify``: of each run's own tokenizer."""
    found = []
    if any(run.preference is not None for run in runs):
        found.append(plot("Answers as the user wants them", partial(_preference, runs=runs)))
    for title, label, names in LINES:
        if any(len(run.figure(name)[0]) for run in runs for name in names):
            found.append(plot(title, partial(_lines, runs=runs, names=names, label=label, zero=title in FROM_ZERO)))
    if any(len(run.tokens.advantages) for run in runs):
        of = " and ".join(dict.fromkeys(run.first_steps for run in runs))
        found.append(plot(f"Advantages by token, {of}", partial(_histogram, runs=runs)))
        classes = [(run, class_groups(run, own)) for run, own in zip(runs, classify, strict=True)]
        found.append(plot("Advantages by kind of token", partial(_groups, groups=classes)))
        places = [(run, position_groups(run)) for run in runs]
        found.append(plot("Advantages by place in the answer", partial(_groups, groups=places)))
    if any(run.hints for run in runs):
        found.append(plot("Length of the hints", partial(_hint_lengths, runs=runs)))
    return found


def plot(title: str, draw: Callable[[Axes], None]) -> Plot:
    """One plot. No display, no global state: a figure of its own. The same figures give the same file."""
    with mpl.rc_context({"svg.hashsalt": "hintloop", "svg.fonttype": "none", "font.size": 9, "text.parse_math": False}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return Plot(title, text[text.index("<svg") :])


def legend(axes: Axes, wanted: bool) -> None:
    """Say what is what, above the plot: no place inside it is free in every plot."""
    if wanted:
        longest = max((len(label) for label in axes.get_legend_handles_labels()[1]), default=0)
        columns = 3 if longest <= LONG_LABEL else 2
        axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)


def shares_in_powers(axes: Axes) -> None:
    """Shares of tokens over several powers of ten."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("share of tokens")


def _lines(axes: Axes, runs: Sequence[Run], names: dict[str, str], label: str, zero: bool) -> None:
    several = sum(any(len(run.figure(name)[0]) for run in runs) for name in names) > 1
    for run, colour in zip(runs, COLOURS, strict=False):
        for (name, called), style in zip(names.items(), STYLES, strict=False):
            steps, values = run.figure(name)
            if not len(steps):
                continue
            words = [word for word, wanted in ((run.name, len(runs) > 1), (called, several)) if wanted]
            label_of_run = " ".join(words) or None
            if len(values) <= SMOOTHED:
                axes.plot(steps, values, color=colour, linestyle=style, marker=".", label=label_of_run)
                continue
            axes.plot(steps, values, color=colour, alpha=0.3, linewidth=0.8, linestyle=style)
            axes.plot(steps, _smooth(values), color=colour, linestyle=style, label=label_of_run)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(label)
    # Each mark with its whole number: a common factor would stand where the legend is.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    if zero:
        axes.set_ylim(bottom=0)
    legend(axes, len(runs) > 1 or several)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Mean of each value and those before it, up to :data:`SMOOTHED`."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - SMOOTHED)
    smoothed: np.ndarray = (sums[ends] - sums[begins]) / (ends - begins)
    return smoothed


def _preference(axes: Axes, runs: Sequence[Run]) -> None:
    """Training answers before each step, and held-out ones with their intervals at both ends."""
    for run, colour in zip(runs, COLOURS, strict=False):
        found = run.preference
        if found is None:
            continue
        last = run.steps[-1]["step"]
        for name, style, marker in (("joint", "-", "o"), ("satisfied", ":", "s")):
            words = [*([run.name] if len(runs) > 1 else []), "on topic, too" if name == "joint" else "satisfied"]
            label = " ".join(words)
            if found.rounds:
                shares = [one[name] for one in found.rounds]
                axes.plot(range(len(shares)), shares, style, color=colour, alpha=0.45, linewidth=1)
            ends = [found.before, found.after]
            values = np.asarray([end[name] for end in ends])
            low, high = np.asarray([end[f"{name}_ci"] for end in ends]).T
            around = np.clip([values - low, high - values], 0, None)
            filled = colour if name == "joint" else "none"
            axes.errorbar(
                [0, last], values, around, fmt=marker, color=colour, markerfacecolor=filled, capsize=3, label=label
            )
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("step (lines: training answers; points: held-out ones)")
    axes.set_ylabel("share of answers")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes, True)


def _histogram(axes: Axes, runs: Sequence[Run]) -> None:
    bins = np.linspace(-FAR, FAR, NUM_BINS)
    for run, colour in zip(runs, COLOURS, strict=False):
        values = np.clip(run.tokens.advantages, -FAR, FAR)
        if len(values):
            weights = np.full(len(values), 1 / len(values))
            axes.hist(values, bins.tolist(), weights=weights, color=colour, alpha=0.55, label=run.name)
    shares_in_powers(axes)
    axes.set_xlabel(f"advantage, nats (what lies further out counts at ±{FAR:g})")
    legend(axes, len(runs) > 1)


def _groups(axes: Axes, groups: Sequence[tuple[Run, Groups]]) -> None:
    """Mean advantage of each group of tokens; the bars' lines reach from the 25th to the 75th percentile."""
    used = [place for place in range(len(groups[0][1])) if any(found[place][1].any() for _, found in groups)]
    width = 0.8 / len(groups)
    for index, ((run, found), colour) in enumerate(zip(groups, COLOURS, strict=False)):
        for row, place in enumerate(used):
            values = run.tokens.advantages[found[place][1]]
            if len(values):
                at = row + (index - (len(groups) - 1) / 2) * width
                axes.barh(at, values.mean(), width * 0.9, color=colour, label=run.name if row == 0 else None)
                axes.hlines(at, *np.percentile(values, (25, 75)), color="#1a202c", linewidth=1.2, alpha=0.8)
    axes.axvline(0, color="#1a202c", linewidth=0.8)
    axes.set_yticks(range(len(used)), [groups[0][1][place][0] for place in used])
    axes.invert_yaxis()
    axes.set_xlabel("mean advantage, nats (line: middle half of the tokens)")
    legend(axes, len(groups) > 1)


def _hint_lengths(axes: Axes, runs: Sequence[Run]) -> None:
    lengths = [np.asarray([len(hint) for hint in run.hints.elements()]) for run in runs]
    longest = max(int(found.max()) for found in lengths if len(found))
    bins = np.linspace(0, longest + 1, 33)
    for run, found, colour in zip(runs, lengths, COLOURS, strict=False):
        if len(found):
            axes.hist(found, bins.tolist(), color=colour, alpha=0.55, label=run.name)
    axes.set_xlabel("characters")
    axes.set_ylabel("hints")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes, len(runs) > 1)
