"""`hintloop link`: one line a file, errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hintloop.commands import app
from hintloop_contract.messages import Capture
from hintloop_rollout_proxy.capture_log import CaptureLog
from typer.testing import CliRunner

CASES = Path(__file__).parents[2] / "fixtures" / "cases"


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def make_capture(turn_id: str, start_ms: int, *texts: str) -> Capture:
    messages = [message("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)]
    return Capture(
        turn_id=turn_id,
        engine="vllm",
        engine_url="",
        request=json.dumps({"messages": messages}).encode(),
        answer=json.dumps(message("assistant", "fine")).encode(),
        start_ms=start_ms,
        end_ms=start_ms + 10,
    )


def test_each_case_gives_one_line_in_order() -> None:
    paths = sorted(CASES.glob("*.json"))
    result = CliRunner().invoke(app, ["link", *map(str, paths)])
    assert result.exit_code == 0
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    for path, report in zip(paths, reports, strict=True):
        assert {key: report[key] for key in ("sessions", "links", "side", "retries")} == json.loads(path.read_text())[
            "expected"
        ]
        assert report["name"] == path.stem


def test_a_capture_log_is_read_as_it_was_captured(tmp_path: Path) -> None:
    log = CaptureLog(tmp_path / "logs" / "captures.jsonl")
    log.write([make_capture("a", 1000, "q"), make_capture("b", 1000, "other")])
    log.write([make_capture("c", 2000, "q", "fine", "more")])
    result = CliRunner().invoke(app, ["link", str(tmp_path / "logs" / "captures.jsonl")])
    assert json.loads(result.stdout) == {
        "name": "captures",
        "sessions": [[0, 2], [1]],
        "links": [[0, 2]],
        "side": [],
        "retries": [],
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "truncated"),
        ("[]", "array"),
        ('{"requests":[{"body":{},"reply":{}}]}', "path"),
        ('{"requests":[{"path":"/v1/completions","reply":{}}]}', "body"),
        ('{"requests":[{"path":"/generate","body":{},"reply":{},"start_ms":5,"end_ms":4}]}', "end_ms 4"),
        ('{"requests":[{"path":"/generate","body":' + "[" * 100_000, "recursion"),
        ('{"requests":[{"path":"/generate","body":{},"reply":{"output_ids":[99999999999]}}]}', "output_ids[0]"),
        ('{"requests":[{"path":"/generate","body":{},"reply":{"token_ids":[-1]}}]}', "token_ids[0]"),
        (" \n", "it is empty"),
        ("\0" * 50, "byte 0"),
    ],
)
def test_a_bad_file_is_named_and_stops_no_other(tmp_path: Path, text: str, reason: str) -> None:
    bad, good = tmp_path / "bad.json", CASES / "01_plain_loop_verbatim.json"
    bad.write_text(text)
    result = CliRunner().invoke(app, ["link", str(bad), str(tmp_path / "absent.json"), str(good)])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["name"] == good.stem
    first, second = result.stderr.splitlines()
    assert str(bad) in first and reason in first
    assert "absent.json: No such file" in second


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path, case = tmp_path / "case.json", CASES / "01_plain_loop_verbatim.json"
    path.write_bytes(b"\xef\xbb\xbf" + case.read_bytes())
    marked, plain = (CliRunner().invoke(app, ["link", str(file)]).stdout for file in (path, case))
    assert marked == plain != ""


def test_a_body_that_cannot_be_read_stands_alone(tmp_path: Path) -> None:
    path, deep = tmp_path / "case.json", "[" * 800 + "]" * 800
    body = {"messages": [message("user", "q")]}
    requests = [{"path": "/v1/chat/completions", "body": b, "reply": {"text": "x"}} for b in (body, "DEEP", 7, [1])]
    path.write_text(json.dumps({"name": "odd", "requests": requests}).replace('"DEEP"', f'{{"messages":[{deep}]}}'))
    result = CliRunner().invoke(app, ["link", str(path)])
    assert json.loads(result.stdout)["sessions"] == [[0], [1], [2], [3]]


def test_what_generates_nothing_keeps_its_number(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    body = {"messages": [message("user", "q")]}
    requests = [{"path": "/v1/models"}, {"path": "/v1/chat/completions", "body": body}, {"path": "/"}]
    path.write_text(json.dumps({"requests": requests}))
    report = json.loads(CliRunner().invoke(app, ["link", str(path)]).stdout)
    assert (report["name"], report["sessions"], report["side"]) == ("case", [[1]], [0, 2])


def test_a_log_with_a_broken_line_names_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    CaptureLog(path).write([make_capture("a", 1000, "q"), make_capture("a", 1000, "q")])
    assert "line 2: turn_id 'a' is there a second time" in CliRunner().invoke(app, ["link", str(path)]).stderr
    path.write_text("\n{}\n")
    result = CliRunner().invoke(app, ["link", str(path)])
    assert result.exit_code == 2 and "line 2" in result.stderr


def test_the_timeout_ends_sessions(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    CaptureLog(path).write([make_capture("a", 1000, "q"), make_capture("b", 20_000, "q", "fine", "more")])
    links = [
        json.loads(CliRunner().invoke(app, ["link", "--session-timeout", seconds, str(path)]).stdout)["links"]
        for seconds in ("30", "10")
    ]
    assert links == [[[0, 1]], []]
