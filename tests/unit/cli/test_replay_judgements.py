"""Judgement files of OpenClaw-RL whose numbers are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hintloop.errors import CommandError
from hintloop.replay.openclaw import run_import

_GOOD = '{"session_id": "s", "turn": 1, "score": 1, "votes": [1, {"score": "fail"}]}'


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"session_id": "s", "turn": 1e400}', "turn is inf"),
        ('{"session_id": "s", "turn": 1.7}', "turn is 1.7"),
        ('{"session_id": "s", "turn": true}', "turn is True"),
        ('{"session_id": "s", "turn": 2, "score": 1e400}', "score is inf"),
        ('{"session_id": "s", "turn": 2, "score": 0.5}', "score is 0.5"),
        ('{"session_id": "s", "turn": 2, "votes": [{"score": 1.7}]}', "score is 1.7"),
        ('{"session_id": "s", "turn": 2, "score": 1' + "0" * 400 + "}", "too large"),
    ],
)
def test_a_number_that_is_none_is_refused_with_its_line(line: str, named: str, tmp_path: Path) -> None:
    records, prm, out = tmp_path / "records.jsonl", tmp_path / "prm.jsonl", tmp_path / "out.jsonl"
    records.write_text('{"session_id": "s", "turn": 1, "messages": [], "response_text": "a"}\n')
    prm.write_text(f"{_GOOD}\n{line}\n")
    with pytest.raises(CommandError, match=f"prm.jsonl, line 2: .*{named}"):
        run_import(records, prm, out)
    assert not out.exists()
    prm.write_text(f"{_GOOD}\n")
    run_import(records, prm, out)
    assert out.exists()
