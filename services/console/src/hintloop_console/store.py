"""The console's database: opening it, one writer, several readers. What rows mean stands in `telling` and `lists`."""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import structlog

from hintloop_console.errors import StoreError

#: Raised when the tables change; a database of another number is set aside and read anew.
SCHEMA = 1
NUM_READERS = 4
BUSY_S = 10.0
#: What SQLite says of a file that is no database, or one no more.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Store:
    """A SQLite database in WAL mode: readers never wait for the writer. Calls block; keep them off the event loop."""

    def __init__(self, path: Path) -> None:
        """Open or create the database at ``path``.

        A damaged file is set aside, as one of an older schema is.

        Raises:
            StoreError: it cannot be created.
        """
        self.path = path
        self.damaged = False
        """Somebody found the file damaged since it was opened; see :meth:`begin_anew`."""
        self._write = threading.Lock()
        self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._open()

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._writer = self._opened()
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                self._set_aside("damaged", str(error))
                self._writer = self._opened()
            readers = [self._connection() for _ in range(NUM_READERS)]
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"console.database {str(self.path)!r} cannot be used: {error}. Give a place that can be written, or "
                "delete the file: what Redis still holds is read again"
            ) from error
        for connection in readers:
            self._readers.put(connection)

    def _opened(self) -> sqlite3.Connection:
        self._keep_private()
        connection = self._connection()
        try:
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, SCHEMA):
                connection.close()
                self._set_aside(f"schema-{found}", "it is of another version of the console")
                self._keep_private()
                connection = self._connection()
            connection.executescript((files("hintloop_console") / "schema.sql").read_text())
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
            connection.commit()
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _set_aside(self, why: str, detail: str) -> None:
        """Rename the file to one that ends with ``why``; an earlier one of that name goes."""
        aside = self.path.with_name(f"{self.path.name}.{why}")
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.path.replace(aside)
        structlog.get_logger().error(
            "console.database is set aside and begun anew: what Redis still holds is read again",
            database=str(self.path),
            aside=str(aside),
            detail=detail,
        )

    def begin_anew(self) -> None:
        """Set a damaged file aside and open a new one. Change numbers go on, for pages that listen; all else is lost.

        Raises:
            StoreError: a new one cannot be created.
        """
        with self._write:
            held = [self._readers.get() for _ in range(NUM_READERS)]
            kept = _readable(held[0])
            for connection in (*held, self._writer):
                connection.close()
            with contextlib.suppress(FileNotFoundError):
                self._set_aside("damaged", "it was found damaged while in use")
            try:
                self._open()
            except StoreError:
                # Closed ones: whoever takes one is told so, and nobody waits for none.
                for connection in held:
                    self._readers.put(connection)
                raise
            for name, value in kept.items():
                remember(self._writer, name, value)
            self.damaged = False

    def _keep_private(self) -> None:
        """Prompts and answers stand in it, and in the log beside it, which SQLite gives the database's permissions."""
        self.path.touch(0o600)
        for suffix in ("", "-wal", "-shm"):
            file = self.path.with_name(self.path.name + suffix)
            if file.is_file():
                file.chmod(0o600)

    def _connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_S, check_same_thread=False, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            # A crash may cost the last transactions; the cursor goes back with them, and they are read again.
            connection.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The writer, in a transaction that is committed at the end, or undone by an error."""
        with self._write, self._noticing(), self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            yield self._writer

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A reader, on one state of the database; waits while all are in use."""
        connection = self._readers.get()
        try:
            with self._noticing():
                connection.execute("BEGIN")
                yield connection
        finally:
            try:
                connection.rollback()
            finally:
                self._readers.put(connection)

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            self.damaged = self.damaged or is_damage(error)
            raise

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


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite says that the file is no database, or one no more."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGE


def _readable(connection: sqlite3.Connection) -> dict[str, str]:
    """What can still be read of what outlives a new file: the number of the last change, the key of cookies."""
    kept = {}
    for name in ("change", "signing_key"):
        with contextlib.suppress(sqlite3.Error):
            value = remembered(connection, name)
            if value is not None:
                kept[name] = value
    return kept


def remembered(connection: sqlite3.Connection, name: str) -> str | None:
    """A single value that was kept."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def remember(connection: sqlite3.Connection, name: str, value: str) -> None:
    """Keep a single value in the transaction that runs."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
