"""A report for people: lines on a terminal, or plain text to paste into an issue; and the same as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hintloop_contract.config.schema import Config
from hintloop_contract.diagnosis.causes import EXPLANATIONS
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hintloop.doctor.finding import Finding, Outcome
from hintloop.doctor.stations import Visit, first_cause, worst
from hintloop.terminal import harmless

STYLES = {
    Outcome.OK: "green",
    Outcome.WARN: "yellow",
    Outcome.FAIL: "bold red",
    Outcome.SKIPPED: "dim",
    Outcome.NOT_YET: "dim",
}
#: Columns that the outcome and the check's name take before what was seen.
OUTCOME_WIDTH, CHECK_WIDTH = 7, 24


def tell(console: Console, visit: Visit) -> None:
    """Print what one station had to say: wrapped in columns for a terminal, else in whole lines to search and paste."""
    if not console.is_terminal:
        for line in plain_lines(visit):
            console.print(harmless(line), soft_wrap=True, markup=False, highlight=False)
        return
    console.print(Text(visit.station, style="bold"), highlight=False)
    for finding in visit.findings:
        console.print(Padding(_lines(finding), (0, 0, 0, 2)), highlight=False)


def plain_lines(visit: Visit) -> Iterator[str]:
    """A station's lines without columns that depend on a width."""
    yield visit.station
    for finding in visit.findings:
        yield f"  {finding.outcome:<{OUTCOME_WIDTH}} {finding.check}: {finding.seen}"
        indent = " " * (OUTCOME_WIDTH + 3)
        if finding.cause is not None:
            explained = EXPLANATIONS[finding.cause]
            yield f"{indent}probable cause [{finding.cause}]: {explained.cause}"
            yield f"{indent}fix: {explained.fix}"
        for row in finding.rows:
            yield indent + "  ".join(f"{name}={_shown(value)}" for name, value in row.items())


def _lines(finding: Finding) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=OUTCOME_WIDTH)
    grid.add_column(width=CHECK_WIDTH)
    grid.add_column(overflow="fold")
    grid.add_row(
        Text(str(finding.outcome), style=STYLES[finding.outcome]), Text(finding.check), Text(harmless(finding.seen))
    )
    if finding.cause is not None:
        explained = EXPLANATIONS[finding.cause]
        grid.add_row("", Text("probable cause", style="dim"), Text(f"{explained.cause} [{finding.cause}]"))
        grid.add_row("", Text("fix", style="dim"), Text(explained.fix))
    return Group(grid, Padding(_table(finding.rows), (0, 0, 0, OUTCOME_WIDTH + 1))) if finding.rows else grid


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(show_edge=False, pad_edge=False, header_style="dim", box=None)
    for name in rows[0]:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(value)) for value in row.values()))
    return table


def _shown(value: object) -> str:
    # A token may be a line break, or blanks alone.
    return "–" if value is None else repr(value) if isinstance(value, str) else str(value)


def conclude(console: Console, visits: Sequence[Visit]) -> None:
    """Print what to mend first."""
    style = "green" if first_cause(visits) is None else "bold"
    console.print(Text(_conclusion(visits), style=style), soft_wrap=not console.is_terminal, highlight=False)


def header(config: Config) -> list[str]:
    """What whoever helps asks first: versions, and what the deployment is made of. No address, no path, no secret."""
    versions = [f"hintloop {version('hintloop')}", f"Python {platform.python_version()}", platform.platform()]
    student = Path(config.model.student_model_path).name or "none"
    parts = {
        "student": f"{student} ({config.model.dtype}, {config.model.max_seq_len} tokens)",
        "method": Path(config.custom_loss or config.advantage.estimator).name,
        "policy engine": f"{config.rollout.engine} x {len(config.engine_urls)}",
        "prm engine": f"{config.prm.engine}, judge {config.prm.judge_backend}",
    }
    return [", ".join(versions), *(f"{name}: {value}" for name, value in parts.items())]


def plain(visits: Sequence[Visit], header: Sequence[str]) -> str:
    """One text to paste: no colours, no columns, fenced so that it stays as it is."""
    lines = ["hintloop doctor", *header, ""]
    lines += [line for visit in visits for line in plain_lines(visit)]
    return "\n".join(["```", *map(harmless, lines), "", harmless(_conclusion(visits)), "```"])


def _conclusion(visits: Sequence[Visit]) -> str:
    cause = first_cause(visits)
    return "Nothing wrong was found." if cause is None else f"Mend first: {cause}. {EXPLANATIONS[cause].fix}"


def as_json(visits: Sequence[Visit]) -> str:
    """Everything as one JSON object."""
    document = {
        "outcome": str(worst(visits)),
        "first_cause": first_cause(visits),
        "stations": [
            {
                "station": visit.station,
                "seconds": round(visit.seconds, 3),
                "findings": [finding.as_dict() for finding in visit.findings],
            }
            for visit in visits
        ],
    }
    return harmless(json.dumps(document, indent=2, ensure_ascii=False))
