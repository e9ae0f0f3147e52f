"""Where a written file may stand, and what is left where it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hintloop.errors import CommandError
from hintloop.replay.openclaw import run_import
from hintloop.replay.writing import Written


@pytest.mark.parametrize("name", ["", ".", "..", "/", "/dev/null", "made"])
def test_what_can_be_no_file_is_refused_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()
    with pytest.raises(CommandError, match=r"--out '.*' is .*; give the name of"), Written(Path(name)):
        pytest.fail("it was opened")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_failure_at_the_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "turns.jsonl"
    target.write_text("before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CommandError, match=r"--out .*turns\.jsonl.*No space left"), Written(target) as written:
        written.write(b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["turns.jsonl"]
    assert target.read_text() == "before"


@pytest.mark.parametrize("taken", ["records.jsonl", "prm.jsonl"])
def test_an_import_does_not_overwrite_what_it_reads(taken: str, tmp_path: Path) -> None:
    records, prm = tmp_path / "records.jsonl", tmp_path / "prm.jsonl"
    records.write_text('{"session_id": "s", "turn": 1, "messages": [], "response_text": "a"}\n')
    prm.write_text('{"session_id": "s", "turn": 1, "score": 1, "votes": []}\n')
    before = (tmp_path / taken).read_text()
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / taken)
    for out in (tmp_path / taken, link):
        with pytest.raises(CommandError, match="would be overwritten; give another file"):
            run_import(records, prm, out)
    assert (tmp_path / taken).read_text() == before
