"""A table with a heading: what reports are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a heading and a row of names."""

    title: str
    names: Row
    rows: Sequence[Row]
