"""What pages list: sessions, turns, steps, versions, drops, and what changed since. Reads rows, writes none.

Pages are by keyset: ``after`` is the ``next`` of the page before, so that a page costs the same wherever it lies.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from hintloop_console import histogram
from hintloop_console.errors import RequestError
from hintloop_console.texts import id_of, match_of

Row = dict[str, Any]

_TURN = (
    "turn_id, session_id, turn_index, tenant, time_ms, stage, score, hint, drop_stage, reason, tokens, "
    "advantage_mean, step, version, text"
)
#: Most changed rows of one kind that a page which comes back is told; it lists anew anyway.
MAX_CHANGED = 1000
NUM_EXAMPLES = 50
NUM_BUCKETS = 60


@dataclass(frozen=True, slots=True)
class TurnFilter:
    """Which turns: ``q`` words or the beginning of an id; empty strings match all."""

    q: str = ""
    session_id: str = ""
    stage: str = ""
    reason: str = ""

    def clause(self) -> tuple[str, list[Any]]:
        """SQL condition on ``turns`` and its values."""
        parts, values = ["1"], []
        for column in ("session_id", "stage", "reason"):
            if value := getattr(self, column):
                parts.append(f"{column} = ?")
                values.append(value)
        if self.q.strip():
            found, more = _search(self.q)
            parts.append(found)
            values += more
        return " AND ".join(parts), values


def _search(query: str) -> tuple[str, list[Any]]:
    match, prefix = match_of(query), id_of(query)
    parts, values = [], []
    if match:
        parts.append("seq IN (SELECT rowid FROM turn_texts WHERE turn_texts MATCH ?)")
        values.append(match)
    if prefix:
        parts += ["turn_id GLOB ?", "session_id GLOB ?"]
        values += [prefix + "*"] * 2
    return (f"({' OR '.join(parts)})", values) if parts else ("0", [])


def turns(connection: sqlite3.Connection, chosen: TurnFilter, after: str, limit: int) -> Row:
    """One page of turns, newest first: ``{rows, next, total}``."""
    clause, values = chosen.clause()
    total = connection.execute(f"SELECT COUNT(*) FROM turns WHERE {clause}", values).fetchone()[0]
    if after:
        clause, values = f"{clause} AND seq < ?", [*values, _number(after, "after")]
    found = connection.execute(
        f"SELECT seq, {_TURN} FROM turns WHERE {clause} ORDER BY seq DESC LIMIT ?", [*values, limit + 1]
    ).fetchall()
    rows = [turn_row(row) for row in found[:limit]]
    return {"rows": rows, "next": str(found[limit - 1]["seq"]) if len(found) > limit else None, "total": total}


def turn_row(row: sqlite3.Row) -> Row:
    """A turn as lists show it."""
    return {name: row[name] for name in _TURN.split(", ")}


def sessions(connection: sqlite3.Connection, q: str, after: str, limit: int) -> Row:
    """One page of sessions, those with the newest turn first: ``{rows, next, total}``."""
    clause, values = TurnFilter(q=q).clause()
    grouped = (
        "SELECT session_id, tenant, COUNT(*) AS turns, MIN(time_ms) AS first_ms, MAX(time_ms) AS last_ms, "
        f"AVG(score) AS score_mean, MAX(seq) AS last FROM turns WHERE {clause} GROUP BY session_id"
    )
    total = connection.execute(f"SELECT COUNT(DISTINCT session_id) FROM turns WHERE {clause}", values).fetchone()[0]
    bound = "WHERE last < ?" if after else ""
    more = [_number(after, "after")] if after else []
    found = connection.execute(
        f"SELECT g.*, t.text AS last_text FROM ({grouped}) g JOIN turns t ON t.seq = g.last {bound} "
        "ORDER BY last DESC LIMIT ?",
        [*values, *more, limit + 1],
    ).fetchall()
    names = ("session_id", "tenant", "turns", "first_ms", "last_ms", "score_mean", "last_text")
    rows = [{name: row[name] for name in names} for row in found[:limit]]
    return {"rows": rows, "next": str(found[limit - 1]["last"]) if len(found) > limit else None, "total": total}


def steps(connection: sqlite3.Connection, after: str, limit: int) -> Row:
    """Steps that stand, oldest first: ``{rows, next}``; such as training went back behind are left out."""
    found = connection.execute(
        "SELECT * FROM steps WHERE NOT given_up AND id > ? ORDER BY id LIMIT ?",
        (_number(after, "after") if after else 0, limit + 1),
    ).fetchall()
    rows = [step_row(row) for row in found[:limit]]
    return {"rows": rows, "next": str(found[limit - 1]["id"]) if len(found) > limit else None}


def step_row(row: sqlite3.Row) -> Row:
    """A step with its figures."""
    return {
        "step": row["step"],
        "version": row["version"],
        "time_ms": row["time_ms"],
        "given_up": bool(row["given_up"]),
        "figures": json.loads(row["figures"]),
    }


def advantages(connection: sqlite3.Connection, first_step: int | None, last_step: int | None) -> Row:
    """Advantages of the tokens of kept, trained turns of these steps, counted by bin."""
    clause, values = "t.stage = 'trained'", []
    for operator, bound in ((">=", first_step), ("<=", last_step)):
        if bound is not None:
            clause += f" AND h.step {operator} ?"
            values.append(bound)
    rows: Iterable[Any] = connection.execute(
        "SELECT h.counts, h.tokens, h.positive, h.negative, h.far FROM histograms h JOIN turns t ON t.seq = h.seq "
        f"WHERE {clause}",
        values,
    )
    counted = histogram.added(tuple(row) for row in rows)

    def share(number: int) -> float | None:
        return number / counted.tokens if counted.tokens else None

    return {
        "edges": histogram.EDGES,
        "counts": counted.counts.tolist(),
        "tokens": counted.tokens,
        "share_positive": share(counted.positive),
        "share_negative": share(counted.negative),
        "share_above_10": share(counted.far),
    }


def versions(connection: sqlite3.Connection, current: int | None, kept: Collection[int] = ()) -> Row:
    """Versions, newest first: ``{rows}``."""
    found = connection.execute("SELECT * FROM versions ORDER BY version DESC")
    return {"rows": [version_row(row, current, kept) for row in found]}


def version_row(row: sqlite3.Row, current: int | None, kept: Collection[int]) -> Row:
    """A version with what the gate said of it; ``kept`` are those that the trainer can go back to."""
    gate = None
    if row["gate_outcome"] is not None:
        gate = {
            "outcome": row["gate_outcome"],
            "reasons": json.loads(row["gate_reasons"]),
            "figures": json.loads(row["gate_figures"]),
        }
    names = ("version", "step", "parent", "time_ms", "run", "weights_hash", "reason")
    return {
        **{name: row[name] for name in names},
        "released": bool(row["released"]),
        "current": row["version"] == current,
        "can_go_back": row["version"] in kept,
        "gate": gate,
    }


def drops(connection: sqlite3.Connection, now_ms: int, minutes: int) -> Row:
    """Drops of the last ``minutes``: totals by ``stage:reason``, their course in equal buckets, the newest examples."""
    width = max(60_000, -(-minutes * 60_000 // NUM_BUCKETS))
    # Buckets begin at multiples of their width, so that a bar does not change while it is looked at.
    first = (now_ms - minutes * 60_000) // width * width
    series: dict[int, dict[str, int]] = {start: {} for start in range(first, now_ms + 1, width)}
    totals: dict[str, int] = {}
    for start, name, number in connection.execute(
        "SELECT time_ms / ? * ? AS start, stage || ':' || reason AS name, COUNT(*) FROM drops WHERE time_ms >= ? "
        "GROUP BY start, name",
        (width, width, first),
    ):
        series.setdefault(start, {})[name] = number
        totals[name] = totals.get(name, 0) + number
    examples = connection.execute(
        "SELECT turn_id, stage, reason, detail, time_ms, tenant FROM drops WHERE time_ms >= ? "
        "ORDER BY time_ms DESC LIMIT ?",
        (first, NUM_EXAMPLES),
    )
    return {
        "reasons": totals,
        "series": [{"time_ms": start, "counts": counts} for start, counts in sorted(series.items())],
        "examples": [dict(row) for row in examples],
    }


_SHOWN: dict[str, Callable[[sqlite3.Row], Row]] = {"turn": turn_row, "step": step_row}


def changed(
    connection: sqlite3.Connection, since: int, current: int | None, kept: Collection[int] = ()
) -> list[tuple[int, str, Row]]:
    """What changed after change ``since``, in order: (change, kind of event, row)."""
    found: list[tuple[int, str, Row]] = []
    for table, kind in (("turns", "turn"), ("steps", "step"), ("versions", "version")):
        rows = connection.execute(
            f"SELECT * FROM {table} WHERE change > ? ORDER BY change DESC LIMIT ?", (since, MAX_CHANGED)
        )
        for row in rows:
            body = version_row(row, current, kept) if kind == "version" else _SHOWN[kind](row)
            found.append((row["change"], kind, body))
    return sorted(found, key=lambda item: item[0])


def _number(text: str, name: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise RequestError(
            422, f"{name} {text[:40]!r} is no cursor; give the 'next' of the page before, or leave it out"
        )
    return int(text)
