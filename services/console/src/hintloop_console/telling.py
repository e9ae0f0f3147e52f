"""What each entry of the history changes in the database. Owns writing rows; an entry told twice changes nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

import numpy as np
import structlog
from hintloop_contract.errors import MessageError
from hintloop_contract.history import GateDecision, HistoryEntry, StepFigures, Trained, VersionNote
from hintloop_contract.messages import Drop, JudgedTurn, LinkedTurn, Sample
from hintloop_contract.tensors import unpack

from hintloop_console import histogram, texts
from hintloop_console.store import Store, remember, remembered

CURSOR = "cursor"
CHANGE = "change"
#: Most rows of these kinds; the oldest go.
MAX_DROPS, MAX_STEPS, MAX_VERSIONS = 100_000, 20_000, 10_000


class Teller:
    """Applies entries to the store, many in one transaction, together with how far was read."""

    def __init__(self, store: Store, *, keep_turns: int, keep_bytes: int) -> None:
        """Keep the newest ``keep_turns`` turns, and no more than ``keep_bytes`` of their contents."""
        self._store = store
        self._keep_turns, self._keep_bytes = keep_turns, keep_bytes

    def cursor(self) -> str:
        """Id of the last entry that was applied."""
        return self._store.remembered(CURSOR) or "0-0"

    def change(self) -> int:
        """Number of the last change; pages that listen ask for what came after it."""
        return int(self._store.remembered(CHANGE) or 0)

    def last_ms(self) -> int:
        """Redis time of the last entry that was applied, milliseconds."""
        return int(self.cursor().partition("-")[0])

    def mended(self) -> bool:
        """Whether the database had been found damaged, and is a new one now.

        Raises:
            StoreError: a new one cannot be created.
        """
        if not self._store.damaged:
            return False
        self._store.begin_anew()
        return True

    def rewind(self) -> None:
        """Begin the history anew: Redis lost it, and ids may come again."""
        self._store.remember(CURSOR, "0-0")

    def apply(self, entries: Sequence[HistoryEntry]) -> None:
        """Apply entries in order; all of them or none."""
        with self._store.writing() as connection:
            hand = _Hand(connection, int(remembered(connection, CHANGE) or 0))
            for entry in entries:
                self._told(connection, hand, entry)
            self._forget(connection)
            if entries:
                remember(connection, CURSOR, entries[-1].entry_id)
            remember(connection, CHANGE, str(hand.change))

    def _told(self, connection: sqlite3.Connection, hand: _Hand, entry: HistoryEntry) -> None:
        """Apply one entry. What cannot be kept is left out alone: the others are no worse for it."""
        connection.execute("SAVEPOINT entry")
        try:
            hand.tell(entry)
        except (ValueError, TypeError, OverflowError, MessageError, sqlite3.IntegrityError, sqlite3.DataError) as error:
            connection.execute("ROLLBACK TO entry")
            log = structlog.get_logger()
            log.error("history entry left out", entry=entry.entry_id, kind=entry.kind, detail=f"{error!r:.500}")
        connection.execute("RELEASE entry")

    def _forget(self, connection: sqlite3.Connection) -> None:
        """Let the oldest go."""
        number, held = connection.execute("SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM turns").fetchone()
        gone: list[int] = []
        if number > self._keep_turns or held > self._keep_bytes:
            for seq, weight in connection.execute("SELECT seq, bytes FROM turns ORDER BY seq"):
                if number <= self._keep_turns and held <= self._keep_bytes:
                    break
                gone.append(seq)
                number, held = number - 1, held - weight
        if gone:
            for table, column in (
                ("turns", "seq"),
                ("contents", "seq"),
                ("histograms", "seq"),
                ("turn_texts", "rowid"),
            ):
                connection.execute(f"DELETE FROM {table} WHERE {column} <= ?", (gone[-1],))
        connection.execute(
            "DELETE FROM drops WHERE time_ms < (SELECT time_ms FROM drops ORDER BY time_ms DESC LIMIT 1 OFFSET ?)",
            (MAX_DROPS,),
        )
        connection.execute("DELETE FROM steps WHERE id <= (SELECT MAX(id) FROM steps) - ?", (MAX_STEPS,))
        connection.execute(
            "DELETE FROM versions WHERE version <= (SELECT MAX(version) FROM versions) - ?", (MAX_VERSIONS,)
        )


class _Hand:
    """Writes within one transaction. ``change`` numbers what pages that listen have to be told."""

    def __init__(self, connection: sqlite3.Connection, change: int) -> None:
        self._connection = connection
        self.change = change

    def tell(self, entry: HistoryEntry) -> None:
        message = entry.message
        self.change += 1
        match message:
            case LinkedTurn():
                self._linked(entry, message)
            case JudgedTurn():
                self._judged(entry, message)
            case Sample():
                self._scored(entry, message)
            case Drop():
                self._dropped(entry, message)
            case Trained():
                self._trained(entry, message)
            case StepFigures():
                self._step(entry, message)
            case GateDecision():
                self._gate(entry, message)
            case VersionNote():
                self._version(entry, message)
            case None:
                self.change -= 1

    def _seq(self, turn_id: str) -> int | None:
        row = self._connection.execute("SELECT seq FROM turns WHERE turn_id = ?", (turn_id,)).fetchone()
        return None if row is None else int(row[0])

    def _begin(self, entry: HistoryEntry, turn: LinkedTurn) -> int:
        """The turn's row, made when this is the first that is heard of it."""
        found = self._seq(turn.turn_id)
        if found is not None:
            return found
        made = self._connection.execute(
            "INSERT INTO turns (turn_id, session_id, turn_index, tenant, time_ms, stage, tokens, version, change) "
            "VALUES (?, ?, ?, ?, ?, 'linked', ?, ?, ?)",
            (
                turn.turn_id,
                turn.session_id,
                turn.turn_index,
                entry.tenant,
                entry.time_ms,
                turn.num_response_tokens,
                turn.version_oldest,
                self.change,
            ),
        )
        assert made.lastrowid is not None
        return made.lastrowid

    def _update(self, seq: int, **values: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        self._connection.execute(
            f"UPDATE turns SET {names}, change = ? WHERE seq = ?", (*values.values(), self.change, seq)
        )

    def _hold(self, seq: int, kind: str, data: bytes) -> None:
        """Keep a message as it stood in the stream."""
        before = self._connection.execute(
            "SELECT LENGTH(data) FROM contents WHERE seq = ? AND kind = ?", (seq, kind)
        ).fetchone()
        self._connection.execute("INSERT OR REPLACE INTO contents VALUES (?, ?, ?)", (seq, kind, data))
        more = len(data) - (before[0] if before else 0)
        self._connection.execute("UPDATE turns SET bytes = bytes + ? WHERE seq = ?", (more, seq))

    def _linked(self, entry: HistoryEntry, turn: LinkedTurn) -> None:
        seq = self._begin(entry, turn)
        self._hold(seq, "turn", entry.data)
        if entry.record is None:
            return
        self._hold(seq, "record", entry.record_data)
        self._update(seq, text=texts.excerpt(entry.record))
        self._searchable(seq, texts.searched(entry.record))

    def _searchable(self, seq: int, text: str) -> None:
        self._connection.execute("DELETE FROM turn_texts WHERE rowid = ?", (seq,))
        self._connection.execute("INSERT INTO turn_texts (rowid, text) VALUES (?, ?)", (seq, text))

    def _judged(self, entry: HistoryEntry, judged: JudgedTurn) -> None:
        seq = self._begin(entry, judged.turn)
        self._hold(seq, "judged", entry.data)
        judgement = judged.judgement
        score = judgement.score if judged.turn.feedback_score is None else judged.turn.feedback_score
        self._update(seq, stage="judged", score=score, hint=judgement.hint, **_NOT_DROPPED)
        if judgement.hint:
            row = self._connection.execute("SELECT text FROM turn_texts WHERE rowid = ?", (seq,)).fetchone()
            said, hint = (row[0] if row else ""), texts.words(judgement.hint)
            if not said.endswith(hint):
                self._searchable(seq, f"{said}\n{hint}")

    def _scored(self, entry: HistoryEntry, sample: Sample) -> None:
        seq = self._seq(sample.turn_id)
        if seq is not None:
            self._hold(seq, "sample", entry.data)
            self._update(seq, stage="scored", score=sample.score, hint=sample.hint, **_NOT_DROPPED)

    def _dropped(self, entry: HistoryEntry, drop: Drop) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO drops VALUES (?, ?, ?, ?, ?, ?)",
            (drop.turn_id, entry.time_ms, entry.tenant, drop.stage, drop.reason, drop.detail),
        )
        seq = self._seq(drop.turn_id)
        if seq is not None:
            self._update(seq, stage="dropped", drop_stage=drop.stage, reason=drop.reason, detail=drop.detail)

    def _trained(self, entry: HistoryEntry, trained: Trained) -> None:
        seq = self._seq(trained.turn_id)
        if seq is None:
            return
        self._hold(seq, "trained", entry.data)
        mean = None
        if trained.advantages is not None and len(trained.advantages):
            advantages_T = unpack(trained.advantages)
            finite = advantages_T[np.isfinite(advantages_T)]
            mean = float(finite.mean()) if finite.size else None
            counted = histogram.count(advantages_T)
            self._connection.execute(
                "INSERT OR REPLACE INTO histograms VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    seq,
                    trained.step,
                    histogram.packed(counted),
                    counted.tokens,
                    counted.positive,
                    counted.negative,
                    counted.far,
                ),
            )
        self._update(seq, stage="trained", step=trained.step, advantage_mean=mean, **_NOT_DROPPED)

    def _step(self, entry: HistoryEntry, step: StepFigures) -> None:
        if self._connection.execute("SELECT 1 FROM steps WHERE entry_id = ?", (entry.entry_id,)).fetchone():
            return
        self._connection.execute(
            "UPDATE steps SET given_up = 1, change = ? WHERE step >= ? AND NOT given_up", (self.change, step.step)
        )
        figures = {name: value for name, value in step.figures.items() if value - value == 0}
        self._connection.execute(
            "INSERT INTO steps (entry_id, step, version, time_ms, figures, change) VALUES (?, ?, ?, ?, ?, ?)",
            (entry.entry_id, step.step, step.version, entry.time_ms, json.dumps(figures), self.change),
        )

    def _gate(self, entry: HistoryEntry, gate: GateDecision) -> None:
        figures = {name: value for name, value in gate.figures.items() if value - value == 0}
        told = (gate.outcome, json.dumps(gate.reasons), json.dumps(figures))
        self._connection.execute(
            "INSERT INTO versions VALUES (?, ?, NULL, '', '', 'step', ?, 0, ?, ?, ?, ?) "
            "ON CONFLICT (version) DO UPDATE SET gate_outcome = excluded.gate_outcome, "
            "gate_reasons = excluded.gate_reasons, "
            "gate_figures = excluded.gate_figures, change = excluded.change",
            (gate.version, gate.step, entry.time_ms, self.change, *told),
        )

    def _version(self, entry: HistoryEntry, note: VersionNote) -> None:
        self._connection.execute(
            "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, NULL, NULL, NULL) "
            "ON CONFLICT (version) DO UPDATE SET step = excluded.step, "
            "parent = excluded.parent, run = excluded.run, weights_hash = excluded.weights_hash, "
            "reason = excluded.reason, time_ms = excluded.time_ms, released = 1, change = excluded.change",
            (
                note.version,
                note.step,
                note.parent,
                note.run,
                note.weights_hash,
                note.reason,
                entry.time_ms,
                self.change,
            ),
        )


#: A turn that goes on after it was dropped was sent again by an operator.
_NOT_DROPPED: dict[str, None] = {"drop_stage": None, "reason": None, "detail": None}
