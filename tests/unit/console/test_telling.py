"""Entries of the history become rows: what each changes, what is kept, what goes."""

import sqlite3
from dataclasses import replace

import pytest
import structlog
from hintloop_console import lists
from hintloop_console.errors import StoreError
from hintloop_console.store import SCHEMA, Store
from hintloop_console.telling import Teller
from hintloop_contract.history import GateDecision, HistoryEntry, VersionNote

from tests.unit.console.story import Story, drop, judged, linked, record, sample, trained


def listed(store: Store, **chosen: str) -> list[dict]:
    with store.reading() as connection:
        return lists.turns(connection, lists.TurnFilter(**chosen), "", 1000)["rows"]


def test_a_turn_moves_from_stage_to_stage(store, teller):
    story = Story()
    seen = []
    for entry in story.whole("a"):
        teller.apply([entry])
        [row] = listed(store)
        seen.append((row["stage"], row["score"], row["hint"], row["step"]))
    assert seen == [
        ("linked", None, None, None),
        ("judged", -1, "Answer in one sentence.", None),
        ("scored", -1, "Answer in one sentence.", None),
        ("trained", -1, "Answer in one sentence.", 7),
    ]
    assert row["text"] == "Quite well." and row["tokens"] == 3 and row["version"] == 3
    assert row["advantage_mean"] == pytest.approx((0.25 - 0.25 - 12.5) / 3)


def test_everything_told_twice_changes_nothing(store, teller):
    story = Story()
    entries = [*story.whole("a"), story.step(7), story.entry("drop", drop("b"))]
    teller.apply(entries)
    once = _everything(store)
    teller.apply(entries)
    assert _everything(store) == once


def _everything(store: Store) -> list:
    tables = ("turns", "contents", "histograms", "drops", "steps", "versions", "turn_texts")
    with store.reading() as connection:
        return [
            [{k: v for k, v in dict(row).items() if k != "change"} for row in connection.execute(f"SELECT * FROM {t}")]
            for t in tables
        ]


def test_the_cursor_moves_with_the_rows_or_not_at_all(store, teller, monkeypatch):
    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    story = Story()
    first = story.entry("turn", linked("a"), record("a"))
    teller.apply([first])
    monkeypatch.setattr(Teller, "_forget", full)
    with pytest.raises(sqlite3.OperationalError):
        teller.apply([story.entry("turn", linked("c"), record("c"))])
    assert teller.cursor() == first.entry_id
    assert [row["turn_id"] for row in listed(store)] == ["a"]


def test_a_dropped_turn_says_why_and_goes_on_when_sent_again(store, teller):
    story = Story()
    teller.apply([story.entry("turn", linked("a"), record("a")), story.entry("drop", drop("a", "dead"))])
    [row] = listed(store)
    assert (row["stage"], row["drop_stage"], row["reason"]) == ("dropped", "judge", "dead")
    teller.apply([story.entry("judged", judged("a"))])
    [row] = listed(store)
    assert (row["stage"], row["drop_stage"], row["reason"]) == ("judged", None, None)


def test_a_drop_of_a_turn_that_was_never_linked_is_no_turn(store, teller):
    story = Story()
    teller.apply([story.entry("drop", drop("side", "side", "capture"))])
    assert listed(store) == []
    with store.reading() as connection:
        assert lists.drops(connection, story._ms, 5)["reasons"] == {"capture:side": 1}


def test_a_turn_whose_beginning_is_gone_is_known_from_its_judgement(store, teller):
    story = Story()
    teller.apply([story.entry("judged", judged("a")), story.entry("sample", sample("z"))])
    [row] = listed(store)
    assert (row["turn_id"], row["stage"], row["text"]) == ("a", "judged", "")


def test_the_oldest_turns_go_with_all_that_is_theirs(store):
    teller = Teller(store, keep_turns=3, keep_bytes=10_000_000)
    story = Story()
    for number in range(6):
        teller.apply(story.whole(f"t{number}"))
    assert [row["turn_id"] for row in listed(store)] == ["t5", "t4", "t3"]
    with store.reading() as connection:
        for table, column in (("contents", "seq"), ("histograms", "seq"), ("turn_texts", "rowid")):
            found = connection.execute(f"SELECT COUNT(DISTINCT {column}) FROM {table}").fetchone()[0]
            assert found == 3, table
    teller.apply([story.entry("trained", trained("t0"))])
    assert len(listed(store)) == 3


def test_contents_are_bounded_by_bytes_too(store):
    teller = Teller(store, keep_turns=1000, keep_bytes=20_000)
    story = Story()
    for number in range(30):
        teller.apply(story.whole(f"t{number}", answer=f"{number} " * 900))
    with store.reading() as connection:
        held, real = connection.execute(
            "SELECT (SELECT SUM(bytes) FROM turns), (SELECT SUM(LENGTH(data)) FROM contents)"
        ).fetchone()
    assert held == real <= 20_000
    assert listed(store)[0]["turn_id"] == "t29" and 3 < len(listed(store)) < 30


def test_steps_behind_which_training_went_back_are_given_up(store, teller):
    story = Story()
    teller.apply([story.step(number, loss=0.1 * number) for number in (1, 2, 3)])
    teller.apply([story.step(2, loss=9.0), story.step(3, loss=float("nan"))])
    with store.reading() as connection:
        page = lists.steps(connection, "", 100)
    assert [(row["step"], row["figures"]) for row in page["rows"]] == [
        (1, {"loss": 0.1}),
        (2, {"loss": 9.0}),
        (3, {}),
    ]


def test_versions_carry_what_the_gate_said(store, teller):
    story = Story()
    teller.apply(
        [
            story.entry("version", VersionNote(version=1, step=0, run="r", reason="start")),
            story.entry("gate", GateDecision(version=2, step=1, outcome="held", reasons=("answers grew",))),
            story.entry("gate", GateDecision(version=3, step=2, outcome="released", figures={"gate_length": 12.0})),
            story.entry("version", VersionNote(version=3, step=2, parent=1, run="r", weights_hash="ab")),
        ]
    )
    with store.reading() as connection:
        rows = lists.versions(connection, 3, {1})["rows"]
    assert [(r["version"], r["released"], r["current"], r["can_go_back"]) for r in rows] == [
        (3, True, True, False),
        (2, False, False, False),
        (1, True, False, True),
    ]
    assert rows[0]["gate"] == {"outcome": "released", "reasons": [], "figures": {"gate_length": 12.0}}
    assert rows[0]["parent"] == 1 and rows[0]["weights_hash"] == "ab"
    assert rows[1]["gate"]["reasons"] == ["answers grew"] and rows[2]["gate"] is None


def test_what_cannot_be_read_is_passed_over(store, teller):
    teller.apply([HistoryEntry("5-1", "newer", "x", "default", None, problem="unknown kind")])
    assert teller.cursor() == "5-1" and listed(store) == []


def test_one_entry_that_cannot_be_kept_is_left_out_alone(store, teller):
    story = Story()
    broken = story.entry("turn", linked("b"), record("b"))
    # More than a database's number holds, and less than a message's.
    huge = story.entry("turn", linked("d", version_oldest=2**63), record("d"))
    entries = [story.entry("turn", linked("a"), record("a")), replace(broken, data=None), huge, *story.whole("c")]  # type: ignore[arg-type]
    with structlog.testing.capture_logs() as logs:
        teller.apply(entries)
    assert [row["turn_id"] for row in listed(store)] == ["c", "a"]
    assert [entry["event"] for entry in logs] == ["history entry left out"] * 2
    assert teller.cursor() == entries[-1].entry_id


def test_halves_of_characters_are_kept_as_such(store, teller):
    story = Story()
    half = "ends in \ud83d"
    # In JSON alone: the wire's own texts cannot hold any.
    teller.apply([story.entry("turn", linked("a"), record("a", said=half, answer=half, then=half))])
    [row] = listed(store)
    assert row["text"] == "ends in \ufffd"
    assert [row["turn_id"] for row in listed(store, q="ends")] == ["a"]


def test_a_database_of_another_schema_is_set_aside(tmp_path):
    path = tmp_path / "db.sqlite3"
    before = Store(path)
    with before.writing() as connection:
        connection.execute("PRAGMA user_version = 99")
    before.remember("cursor", "7-0")
    before.close()
    after = Store(path)
    assert after.remembered("cursor") is None
    with after.reading() as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA
    after.close()
    assert path.with_name("db.sqlite3.schema-99").exists()


def test_only_its_owner_may_read_the_database_and_the_log_beside_it(store):
    store.remember("cursor", "7-0")
    files = {file.name: file.stat().st_mode & 0o777 for file in store.path.parent.iterdir()}
    assert files == {f"db.sqlite3{suffix}": 0o600 for suffix in ("", "-wal", "-shm")}


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"console\.database .*file/db"):
        Store(tmp_path / "file" / "db")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="delete the file"):
        Store(tmp_path / "folder")
