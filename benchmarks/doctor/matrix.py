"""The fault matrix as it was measured: reading its rows, and writing them for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Matrix:
    """``rows``: one for each fault and variant. ``healthy``: one for each look at the stack without a fault."""

    rows: list[Row] = field(default_factory=list)
    healthy: list[Row] = field(default_factory=list)

    @property
    def num_named(self) -> int:
        """Rows whose first cause is the fault's."""
        return sum(row["named"] == row["wanted"] for row in self.rows)

    @property
    def num_false_alarms(self) -> int:
        """Causes that were raised without a fault."""
        return sum(len(look["raised"]) for look in self.healthy)

    @property
    def slowest_s(self) -> float | None:
        """Seconds of the longest run of the doctor."""
        seconds = [row["seconds"] for row in (*self.rows, *self.healthy)]
        return max(seconds) if seconds else None


def read(folder: Path) -> Matrix:
    """What the tests noted in ``folder``; of rows that were measured again the last one."""
    found: dict[tuple[str, str], Row] = {}
    path = folder / "matrix.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        row = json.loads(line)
        found[row.get("fault", ""), row.get("variant", row.get("healthy", ""))] = row
    rows = list(found.values())
    return Matrix([row for row in rows if "fault" in row], [row for row in rows if "healthy" in row])


def table(matrix: Matrix) -> Table:
    """For a terminal."""
    shown = Table("fault", "variant", "named first", "s", title="Fault matrix", title_justify="left")
    for row in matrix.rows:
        right = row["named"] == row["wanted"]
        named = f"[green]{row['named']}[/green]" if right else f"[red]{row['named']}[/red], not {row['wanted']}"
        shown.add_row(row["fault"], row["variant"], named, f"{row['seconds']:.0f}")
    for look in matrix.healthy:
        raised = ", ".join(look["raised"])
        shown.add_row(
            "none", look["healthy"], f"[red]{raised}[/red]" if raised else "nothing", f"{look['seconds']:.0f}"
        )
    return shown


def markdown(rows: Sequence[Row], faults: Sequence[str]) -> list[str]:
    """A line for each of ``faults``: how each variant was named."""
    lines = ["| fault | named first | the second variant |", "|---|---|---|"]
    for fault in faults:
        said = {row["variant"]: _cell(row) for row in rows if row["fault"] == fault}
        lines.append(f"| {fault} | {said.get('primary', 'not measured')} | {said.get('second', 'not measured')} |")
    return lines


def _cell(row: Row) -> str:
    named = f"`{row['named']}`" if row["named"] else "nothing"
    return named if row["named"] == row["wanted"] else f"**{named}**, not `{row['wanted']}`"
