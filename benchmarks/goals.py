"""Goals of a benchmark's part, the file that says whether they were met, and the table that a person reads."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

REPORTS = Path(__file__).parents[1] / ".hintloop" / "bench"


@dataclass(frozen=True, slots=True)
class Goal:
    """``value`` is to be at least, or at most, ``limit``; no value is not met."""

    name: str
    kind: Literal["at most", "at least"]
    limit: float
    value: float | None
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the value keeps the limit."""
        if self.value is None:
            return False
        return self.value <= self.limit if self.kind == "at most" else self.value >= self.limit

    def as_json(self) -> dict[str, Any]:
        """``{goal, value, met}``."""
        return {"goal": f"{self.kind} {self.limit:g} {self.unit}".strip(), "value": self.value, "met": self.met}


def write_report(part: str, goals: Sequence[Goal], **more: Any) -> Path:
    """Write ``.hintloop/bench/<part>.json`` with ``goals`` and ``more``; its path."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    path = REPORTS / f"{part}.json"
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps({"goals": {goal.name: goal.as_json() for goal in goals}, **more}, indent=1) + "\n")
    aside.replace(path)
    return path


def print_goals(title: str, goals: Sequence[Goal], console: Console | None = None) -> None:
    """Print a table of ``goals``."""
    table = Table("goal", "limit", "measured", "met", title=title, title_justify="left")
    for goal in goals:
        value = "not measured" if goal.value is None else f"{goal.value:.4g} {goal.unit}".strip()
        mark = "[green]yes[/green]" if goal.met else "[red]no[/red]"
        table.add_row(goal.name, f"{goal.kind} {goal.limit:g} {goal.unit}".strip(), value, mark)
    (console or Console()).print(table)
