"""Reports as a page and as Markdown. Both are whole in themselves: nothing is loaded from anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from hintloop.report.figures import Plot, plots
from hintloop.report.runs import Run
from hintloop.report.summary import comparison, tables
from hintloop.report.tables import Table
from hintloop.terminal import harmless

#: Users ask why a loss that learns does not fall.
NOTE = (
    "The policy loss is a surrogate: with one step a batch its ratio is 1 and its value is minus the mean advantage, "
    "so it says nothing of progress by itself. What should move is the gap between teacher and student (towards 0) "
    "under OPD, the KL under Top-K, and the score under binary and combined."
)

#: What Markdown gives a meaning inside a line.
_MARKS = re.compile(r"[\\`*\[\]<>|]|&(?=#?\w+;)")


@dataclass(frozen=True, slots=True)
class Section:
    """One run's tables."""

    name: str
    tables: Sequence[Table]


@dataclass(frozen=True, slots=True)
class Report:
    """Both forms."""

    html: str
    markdown: str


def make(runs: Sequence[Run], classify: Sequence[Callable[[int], str]]) -> Report:
    """The report of one run, or of two against one another; ``classify``: of each run's own tokenizer."""
    compared = [comparison(*runs)] if len(runs) == 2 else []
    return make_page(
        " against ".join(run.name for run in runs),
        "; ".join(_lead(run) for run in runs),
        compared,
        plots(runs, classify),
        [Section(run.name, tables(run, own)) for run, own in zip(runs, classify, strict=True)],
    )


def make_page(
    title: str,
    lead: str,
    compared: Sequence[Table],
    drawn: Sequence[Plot],
    sections: Sequence[Section],
    *,
    note: bool = True,
) -> Report:
    """A report of any content: what is compared first, then the plots, then each section's tables.

    ``note``: say what a loss does not say.
    """
    shown: dict[str, Any] = {
        "title": title,
        "lead": lead,
        "note": NOTE if note else "",
        "compared": compared,
        "sections": sections,
    }
    return Report(_render("report.html.j2", plots=drawn, **shown), _render("report.md.j2", **shown))


def _lead(run: Run) -> str:
    first, last = run.steps[0]["step"], run.steps[-1]["step"]
    kept = (
        f"tokens of {run.num_answers} answers kept" if run.num_answers else "no tokens kept (opd.log_teacher_logprobs)"
    )
    return f"{run.name}: steps {first} to {last}, version {run.last('version')}, {kept}"


def _render(name: str, **values: Any) -> str:
    environment = Environment(
        loader=PackageLoader("hintloop.report", "templates"),
        autoescape=select_autoescape(("html.j2",)),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=False,
    )
    environment.filters |= {"plain": _plain, "harmless": harmless}
    return environment.get_template(name).render(**values)


def _plain(text: str) -> str:
    """Text in Markdown as it is: no line breaks, and no mark that would be read as a link, a picture or a tag."""
    return _MARKS.sub(r"\\\g<0>", harmless(" ".join(text.split())))
