"""A replay's plots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from hintloop.replay.spread import BIN_WIDTH, EDGE, NUM_BINS
from hintloop.replay.summary import SCORES, Agreement, SideFigures
from hintloop.report.figures import COLOURS, Plot, legend, plot, shares_in_powers

#: Bins of the store's histogram that are drawn as one.
JOINED = 25
#: Drop reasons that are drawn; the table has all.
NUM_REASONS = 8
_NAMES = ("+1", "0", "−1", "none")


def replay_plots(sides: Sequence[SideFigures], agreement: Agreement | None) -> list[Plot]:
    """Everything that the sides have figures for."""
    found = []
    if any(side.judged for side in sides):
        found.append(plot("Scores by the judge", partial(_scores, sides=sides)))
    if agreement is not None and agreement.compares_scores:
        found.append(plot("Scores of both sides, turn by turn", partial(_matrix, agreement=agreement)))
    if any(side.drops for side in sides):
        found.append(plot("Dropped turns by reason", partial(_drops, sides=sides)))
    if any(side.advantages.count for side in sides):
        found.append(plot("Advantages by token, all turns", partial(_advantages, sides=sides)))
    return found


def _scores(axes: Axes, sides: Sequence[SideFigures]) -> None:
    places = np.arange(len(SCORES) + 1)
    width = 0.8 / len(sides)
    for index, side in enumerate(sides):
        shares = [side.scores[score] / side.judged if side.judged else 0.0 for score in SCORES]
        shares.append(side.num_hints / side.judged if side.judged else 0.0)
        at = places + (index - (len(sides) - 1) / 2) * width
        axes.bar(at, shares, width, color=COLOURS[index], label=side.name)
    axes.set_xticks(places, [*_NAMES, "a hint"])
    axes.set_ylabel("share of judged turns")
    axes.set_ylim(0, 1)
    legend(axes, len(sides) > 1)


def _matrix(axes: Axes, agreement: Agreement) -> None:
    counts = np.array([[agreement.matrix[a, b] for b in SCORES] for a in SCORES])
    axes.imshow(counts, cmap="Blues", aspect="auto", vmin=0)
    for (row, column), number in np.ndenumerate(counts):
        dark = number > counts.max() / 2
        axes.text(column, row, str(number), ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(SCORES)), _NAMES)
    axes.set_yticks(range(len(SCORES)), _NAMES)
    axes.set_xlabel("b")
    axes.set_ylabel("a")
    axes.set_axisbelow(True)
    axes.grid(visible=False)


def _drops(axes: Axes, sides: Sequence[SideFigures]) -> None:
    totals = sum((side.drops for side in sides), start=type(sides[0].drops)())
    reasons = [reason for reason, _ in totals.most_common(NUM_REASONS)][::-1]
    places = np.arange(len(reasons))
    width = 0.8 / len(sides)
    for index, side in enumerate(sides):
        at = places + ((len(sides) - 1) / 2 - index) * width
        axes.barh(at, [side.drops[reason] for reason in reasons], width, color=COLOURS[index], label=side.name)
    axes.set_yticks(places, reasons)
    axes.set_xlabel("turns")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes, len(sides) > 1)


def _advantages(axes: Axes, sides: Sequence[SideFigures]) -> None:
    # Bins have their middles at multiples of their width; the last, one too many to be joined, goes to those before it.
    edges = -EDGE - BIN_WIDTH / 2 + BIN_WIDTH * JOINED * np.arange(NUM_BINS // JOINED + 1)
    used = np.zeros(NUM_BINS // JOINED, bool)
    for index, side in enumerate(sides):
        if side.advantages.count:
            counts = np.add.reduceat(side.advantages.bins_B, np.arange(0, NUM_BINS - 1, JOINED))
            used |= counts > 0
            axes.stairs(
                counts / side.advantages.count, edges, color=COLOURS[index], fill=True, alpha=0.5, label=side.name
            )
    inside = edges[:-1][used]
    axes.set_xlim(min(inside.min(), -1.0), max(inside.max() + BIN_WIDTH * JOINED, 1.0))
    shares_in_powers(axes)
    axes.set_xlabel("advantage, nats")
    legend(axes, len(sides) > 1)
