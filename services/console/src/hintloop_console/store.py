"""The console's database: opening it, one writer, several readers. What rows mean stands in `telling` and `lists`."""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from hintloop_console.errors import StoreError

#: Raised when the tables change; a database of another number is set aside and read anew.
SCHEMA = 1
NUM_READERS = 4
BUSY_S = 10.0


class Store:
    """A SQLite database in WAL mode: readers never wait for the writer. Calls block; keep them off the event loop."""

    def __init__(self, path: Path) -> None:
        """Open or create the database at ``path``.

        Raises:
            StoreError: it cannot be created, or is no database.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = self._opened()
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"console.database {str(path)!r} cannot be used: {error}. Give a place that can be written, or delete "
                "the file: what Redis still holds is read again"
            ) from error
        self._write = threading.Lock()
        self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        for _ in range(NUM_READERS):
            self._readers.put(self._connection())

    def _opened(self) -> sqlite3.Connection:
        self._keep_private()
        connection = self._connection()
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, SCHEMA):
            connection.close()
            self.path.replace(self.path.with_name(f"{self.path.name}.schema-{found}"))
            for suffix in ("-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            self._keep_private()
            connection = self._connection()
        connection.executescript((files("hintloop_console") / "schema.sql").read_text())
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.commit()
        return connection

    def _keep_private(self) -> None:
        """Prompts and answers stand in it, and in the log beside it, which SQLite gives the database's permissions."""
        self.path.touch(0o600)
        for suffix in ("", "-wal", "-shm"):
            file = self.path.with_name(self.path.name + suffix)
            if file.is_file():
                file.chmod(0o600)

    def _connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_S, check_same_thread=False, isolation_level=None)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        # A crash may cost the last transactions; the cursor goes back with them, and they are read again.
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The writer, in a transaction that is committed at the end, or undone by an error."""
        with self._write, self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            yield self._writer

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A reader, on one state of the database; waits while all are in use."""
        connection = self._readers.get()
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            connection.rollback()
            self._readers.put(connection)

    def remembered(self, name: str) -> str | None:
        """A single value that was kept."""
        with self.reading() as connection:
            return remembered(connection, name)

    def remember(self, name: str, value: str) -> None:
        """Keep a single value."""
        with self.writing() as connection:
            remember(connection, name, value)

    def close(self) -> None:
        """Close every connection; readers in use are waited for."""
        for _ in range(NUM_READERS):
            self._readers.get().close()
        self._writer.close()


def remembered(connection: sqlite3.Connection, name: str) -> str | None:
    """A single value that was kept."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def remember(connection: sqlite3.Connection, name: str, value: str) -> None:
    """Keep a single value in the transaction that runs."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
