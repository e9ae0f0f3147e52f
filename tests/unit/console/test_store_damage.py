"""A database that is none, or one no more, is set aside; a new one is filled from the stream, and the page goes on."""

import asyncio
import contextlib
import sqlite3

import pytest
import structlog
from hintloop_console.errors import StoreError
from hintloop_console.reader import Reader
from hintloop_console.store import Store, is_damage
from hintloop_console.telling import Teller
from hintloop_contract.history import HistoryBounds, StepFigures
from hintloop_contract.testing.memory import MemoryBroker

BOUNDS = HistoryBounds(1000, 10_000_000)


def spoil(path):
    """Overwrite what a database's pages say, but for the first, as a broken disk does."""
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))


def stepped(store):
    with store.reading() as connection:
        return [row[0] for row in connection.execute("SELECT step FROM steps ORDER BY step")]


async def until(seen):
    async with asyncio.timeout(30):
        while not seen():
            await asyncio.sleep(0.02)


def written(path, steps):
    """A database with steps in it, all of it in the file itself."""
    store = Store(path)
    with store.writing() as connection:
        for step in range(steps):
            connection.execute(
                "INSERT INTO steps (entry_id, step, time_ms, figures, change) VALUES (?, ?, 0, '{}', ?)",
                (f"{step}-0", step, step + 1),
            )
    store.remember("change", "41")
    store.close()


@contextlib.asynccontextmanager
async def reading(broker, store):
    """The history's reader at work; at the end it, the store and the broker are closed."""
    teller, stop = Teller(store, keep_turns=10, keep_bytes=10**9), asyncio.Event()
    reader = Reader(broker, teller)
    running = asyncio.create_task(reader.run(stop))
    try:
        yield reader, teller
    finally:
        stop.set()
        await asyncio.wait_for(running, 30)
        store.close()
        await broker.close()


def test_a_file_that_is_no_database_is_set_aside_and_said(tmp_path):
    path = tmp_path / "db"
    path.write_text("no database at all, but text" * 100)
    with structlog.testing.capture_logs() as logs:
        store = Store(path)
    assert stepped(store) == []
    store.close()
    assert path.with_name("db.damaged").read_text().startswith("no database")
    [said] = [entry for entry in logs if entry["log_level"] == "error"]
    assert "set aside" in said["event"] and said["aside"].endswith("db.damaged") and "not a database" in said["detail"]


def test_a_damaged_file_is_set_aside_when_it_is_opened_or_when_it_is_read(tmp_path):
    path = tmp_path / "db"
    written(path, 2000)
    spoil(path)
    store = Store(path)
    if not store.path.with_name("db.damaged").exists():  # only its first page was looked at
        with pytest.raises(sqlite3.DatabaseError) as caught:
            stepped(store)
        assert is_damage(caught.value) and store.damaged
        store.begin_anew()
    assert stepped(store) == [] and not store.damaged
    store.remember("cursor", "7-0")
    store.close()
    assert path.with_name("db.damaged").exists()
    assert path.stat().st_mode & 0o777 == 0o600


async def test_damage_in_use_is_mended_and_what_redis_holds_is_read_again(tmp_path):
    broker, path = MemoryBroker("default", history=BOUNDS), tmp_path / "db"
    store = Store(path)
    await broker.remember([StepFigures(step=step, figures={"loss": 0.5}) for step in range(1, 4)])
    async with reading(broker, store) as (_, teller):
        await until(lambda: stepped(store) == [1, 2, 3])
        change = teller.change()
        store.damaged = True  # as after a read that found it so
        await until(lambda: not store.damaged)
        await until(lambda: stepped(store) == [1, 2, 3])
        assert path.with_name("db.damaged").exists()
        assert teller.change() > change, "a page that listens hears of what comes"
        await broker.remember([StepFigures(step=4, figures={})])
        await until(lambda: stepped(store) == [1, 2, 3, 4])


async def test_where_no_new_one_can_be_made_it_waits_and_goes_on_later(tmp_path, monkeypatch):
    broker = MemoryBroker("default", history=BOUNDS)
    store = Store(tmp_path / "db")
    open_it, full = store._opened, []

    def opened():
        if len(full) < 2:
            full.append(1)
            raise OSError(28, "No space left on device")
        return open_it()

    monkeypatch.setattr(store, "_opened", opened)
    store.damaged = True
    async with reading(broker, store) as (reader, _):
        await until(lambda: full and reader.away and "No space left" in reader.away)
        await broker.remember([StepFigures(step=1, figures={})])
        await until(lambda: not store.damaged and stepped(store) == [1])
        assert reader.away is None


async def test_a_request_meanwhile_is_answered_with_the_reason(make_site, monkeypatch):
    async with make_site() as site:

        def broken(*_):
            raise sqlite3.DatabaseError("database disk image is malformed")

        monkeypatch.setattr("hintloop_console.lists.turns", broken)
        answer = await site.get("/turns")
        assert answer.status_code == 503 and "malformed" in answer.json()["error"]["message"]


def test_a_store_that_cannot_be_made_anew_keeps_nobody_waiting(tmp_path, monkeypatch):
    store = Store(tmp_path / "db")
    monkeypatch.setattr(store, "_opened", lambda: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(StoreError, match="full"):
        store.begin_anew()
    with pytest.raises(sqlite3.ProgrammingError):
        store.remembered("cursor")
