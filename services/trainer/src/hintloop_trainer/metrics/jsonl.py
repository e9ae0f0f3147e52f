"""`metrics.jsonl`: one JSON object a step, only ever appended to.

Besides its figures a line has ``time_s`` (this host's clock), ``run`` (the process that wrote it), ``stretch`` (counted
from 1 in each run) and ``from_step``, the step that the stretch began from. A crash loses the steps after the last
checkpoint, and so does going back to older weights: they are trained anew, and their lines stand in the file twice.
:func:`surviving` tells them apart: where a stretch begins, lines before it of steps after its ``from_step`` are void.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hintloop_trainer.metrics.sink import Metrics


class MetricsFile:
    """Appends one line a step."""

    def __init__(self, path: Path, run: str) -> None:
        """Append to ``path`` as ``run``."""
        self._path = path
        self._run = run
        self._from_step = self._stretch = 0

    def begin(self, step: int) -> None:
        """Lines that follow belong to a stretch that began from ``step``."""
        self._from_step = step
        self._stretch += 1

    def write(self, metrics: Metrics) -> None:
        """Append one line; figures that are not finite are null, for JSON has no others."""
        mine = {"run": self._run, "stretch": self._stretch, "from_step": self._from_step}
        line = {"time_s": time.time(), **mine, **metrics}
        finite = {name: None if _is_nan(value) else value for name, value in line.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(("\n" if _is_torn(self._path) else "") + json.dumps(finite) + "\n")

    def close(self) -> None:
        """Every line is written already."""


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_torn(path: Path) -> bool:
    """Whether the last line was not written to its end."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            return False
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def surviving(lines: Iterable[bytes | str]) -> list[dict[str, Any]]:
    """Of the file's lines those of steps that the weights descend from, in order; torn ones, and such as are no step's,
    are left out."""
    kept: list[dict[str, Any]] = []
    stretch: tuple[Any, ...] | None = None
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(found, dict) or not all(_is_count(found.get(name, 0)) for name in ("step", "from_step")):
            continue
        mine = (found.get("run"), found.get("stretch"))
        if stretch is not None and mine != stretch:
            kept = [earlier for earlier in kept if earlier["step"] <= found.get("from_step", 0)]
        stretch = mine
        if "step" in found:
            kept.append(found)
    return kept


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
