"""What a replay has found so far: one row a turn and side, on disk, written before a stream is told.

A row is only ever overwritten by the same finding made again, so an interruption costs nothing and doubles nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from hintloop_contract.codec import decode_payload, encode_payload
from hintloop_contract.history import Trained
from hintloop_contract.messages import Drop, Judgement, Sample

_SCHEMA = """
CREATE TABLE IF NOT EXISTS turns (
  side TEXT NOT NULL, turn_id TEXT NOT NULL, line INTEGER NOT NULL,
  judgement BLOB, sample BLOB, trained BLOB, stage TEXT, reason TEXT, detail TEXT, left_over TEXT,
  PRIMARY KEY (side, turn_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS turns_by_line ON turns (side, line);
CREATE TABLE IF NOT EXISTS notes (
  side TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (side, name)
);
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One turn on one side. ``reason`` is set where it was dropped, ``left_over`` where it was not used up."""

    turn_id: str
    line: int
    judgement: Judgement | None
    sample: Sample | None
    trained: Trained | None
    stage: str | None
    reason: str | None
    detail: str | None
    left_over: str | None

    @property
    def outcome(self) -> str:
        """`dropped`, `left`, `trained`, `taught` or `judged`: the furthest that it came."""
        if self.reason is not None:
            return "dropped"
        if self.left_over is not None:
            return "left"
        if self.trained is not None:
            return "trained"
        return "taught" if self.sample is not None else "judged"


class Store:
    """The file; a context manager."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        # A killed process loses nothing that was committed; only the machine's own end may.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def note(self, side: str, name: str) -> str | None:
        """A note of a side."""
        found = self._connection.execute("SELECT value FROM notes WHERE side = ? AND name = ?", (side, name)).fetchone()
        return None if found is None else str(found[0])

    def set_note(self, side: str, name: str, value: str) -> None:
        """Keep a note of a side."""
        self._connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", (side, name, value))

    def expect(self, side: str, turn_id: str, line: int) -> None:
        """The turn of ``line`` is about to be given to the side."""
        self._connection.execute(
            "INSERT OR IGNORE INTO turns (side, turn_id, line) VALUES (?, ?, ?)", (side, turn_id, line)
        )

    def num_fed_lines(self, side: str) -> int:
        """Lines of the file that were given to the side."""
        return int(self.note(side, "fed") or 0)

    def judged(self, side: str, turn_id: str, judgement: Judgement) -> None:
        """What the judge said of a turn."""
        self._set(side, turn_id, "judgement", encode_payload(judgement))

    def taught(self, side: str, sample: Sample) -> None:
        """What the teacher made of a turn."""
        self._set(side, sample.turn_id, "sample", encode_payload(sample))

    def _set(self, side: str, turn_id: str, column: str, value: bytes) -> None:
        self._connection.execute(
            f"UPDATE turns SET {column} = ? WHERE side = ? AND turn_id = ?",  # columns are this module's
            (value, side, turn_id),
        )

    def dropped(self, side: str, drops: Iterable[Drop], cursor: str) -> None:
        """Drops, read from the stream up to entry ``cursor``."""
        with self._transaction():
            self._connection.executemany(
                "UPDATE turns SET stage = ?, reason = ?, detail = ? WHERE side = ? AND turn_id = ?",
                [(drop.stage, drop.reason, drop.detail, side, drop.turn_id) for drop in drops],
            )
            self.set_note(side, "drops", cursor)

    def trained(self, side: str, notes: Iterable[Trained], cursor: str) -> None:
        """What the trainer noted of turns, read from the history up to entry ``cursor``."""
        with self._transaction():
            self._connection.executemany(
                "UPDATE turns SET trained = ? WHERE side = ? AND turn_id = ?",
                [(encode_payload(note), side, note.turn_id) for note in notes],
            )
            self.set_note(side, "history", cursor)

    def left(self, side: str, turn_ids: Sequence[str], why: str) -> None:
        """Turns that were not used up, and why."""
        with self._transaction():
            self._connection.executemany(
                "UPDATE turns SET left_over = ?, trained = NULL WHERE side = ? AND turn_id = ?",
                [(why, side, turn_id) for turn_id in turn_ids],
            )

    def rows(self, side: str) -> Iterator[Row]:
        """Every turn of a side in the file's order, one at a time."""
        found = self._connection.execute(
            "SELECT turn_id, line, judgement, sample, trained, stage, reason, detail, left_over FROM turns "
            "WHERE side = ? ORDER BY line",
            (side,),
        )
        for turn_id, line, judgement, sample, trained, *rest in found:
            yield Row(
                turn_id,
                line,
                None if judgement is None else decode_payload(judgement, Judgement),
                None if sample is None else decode_payload(sample, Sample),
                None if trained is None else decode_payload(trained, Trained),
                *rest,
            )

    def count(self, side: str, condition: str = "1") -> int:
        """Turns of a side that meet an SQL condition over the columns."""
        query = f"SELECT COUNT(*) FROM turns WHERE side = ? AND ({condition})"  # conditions are ours
        return int(self._connection.execute(query, (side,)).fetchone()[0])

    def ids(self, side: str, condition: str) -> list[str]:
        """Ids of the turns that meet an SQL condition."""
        query = f"SELECT turn_id FROM turns WHERE side = ? AND ({condition})"  # conditions are ours
        return [str(row[0]) for row in self._connection.execute(query, (side,))]

    def _transaction(self) -> _Transaction:
        return _Transaction(self._connection)


class _Transaction:
    """All of it, or nothing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.execute("COMMIT" if kind is None else "ROLLBACK")
