"""What doctor says as a whole: the order of causes, secrets, text of others, JSON, and its exit code."""

from __future__ import annotations

import asyncio
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hintloop.commands import app
from hintloop.doctor import run, show, stations
from hintloop.doctor.finding import Finding, Outcome, fail, ok
from hintloop.doctor.look import Look
from hintloop.doctor.stations import Station, Visit
from hintloop_contract.config import load_config
from hintloop_contract.diagnosis.causes import Cause
from rich.console import Console
from typer.testing import CliRunner

from .test_doctor import write_config


async def test_the_first_failure_along_the_chain_comes_before_any_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_: Look) -> list[Finding]:
        await asyncio.sleep(60)
        return []

    async def warned(_: Look) -> list[Finding]:
        return [Finding("a", Outcome.WARN, "", Cause.EQUAL_VOTES)]

    chain = [
        stations.Station("configuration", warned, Cause.CONFIGURATION_INVALID),
        stations.Station("judge", hang, Cause.JUDGE_ENGINE_AWAY, limit_s=0.01),
        stations.Station("traffic", warned, Cause.TURNS_DROPPED),
    ]
    visits = await stations.visit(None, chain, lambda _: None)  # type: ignore[arg-type]
    assert stations.first_cause(visits) is Cause.JUDGE_ENGINE_AWAY
    assert stations.worst(visits) is Outcome.FAIL
    assert stations.first_cause(visits[:1]) is Cause.EQUAL_VOTES


def test_only_of_a_station_brings_what_it_needs() -> None:
    assert [station.name for station in stations.chosen(["traffic"])] == ["redis", "traffic"]
    assert len(stations.chosen([])) == len(stations.STATIONS)


def test_a_wrong_configuration_is_a_finding(tmp_path: Path) -> None:
    path = write_config(tmp_path, "[training]\nlearning_rat = 1")
    result = CliRunner().invoke(app, ["doctor", "--json", "--config", str(path), "--state-dir", str(tmp_path / "s")])
    document = json.loads(result.stdout)
    assert (result.exit_code, document["first_cause"]) == (1, "configuration_invalid")
    assert "learning_rate" in document["stations"][0]["findings"][0]["seen"]


def test_secrets_are_masked_in_both_forms(tmp_path: Path) -> None:
    path = write_config(tmp_path, "[redis]\nurl = 'redis://:hunter2@127.0.0.1:9/0'\n[prm]\nprm_api_key = '127.0.0.1'")
    arguments = ["doctor", "--only", "redis", "--config", str(path), "--state-dir", str(tmp_path / "s")]
    for form in ([], ["--json"]):
        result = CliRunner().invoke(app, [*arguments, *form])
        assert result.exit_code == 1
        assert "redis_away" in result.stdout
        assert "127.0.0.1" not in result.stdout and run.MASK in result.stdout
    assert run.secrets(load_config([path], environ={}).config) == ["127.0.0.1", "hunter2"]


SECRET = "sk-0123456789abcdef"
HOSTILE = Visit(
    "judge", [fail("judge", f"{'x' * 70} {SECRET} \x1b[2J", Cause.VOTES_FAIL, [{"hint": SECRET, "n": 1}])], 0.1
)


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_end_of_a_line_divides_a_secret_so_that_it_is_not_masked(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    show.tell(console, run.masked(HOSTILE, [SECRET]))
    assert isinstance(console.file, io.StringIO)
    shown = re.sub(r"\s", "", console.file.getvalue())
    assert SECRET not in shown and "0123456789" not in shown
    assert shown.count(run.MASK) == 2


def test_what_engines_say_moves_no_cursor() -> None:
    for terminal in (True, False):
        console = Console(file=io.StringIO(), width=120, force_terminal=terminal, color_system=None)
        show.tell(console, HOSTILE)
        assert isinstance(console.file, io.StringIO)
        assert "\x1b[2J" not in console.file.getvalue() and "\\u001b[2J" in console.file.getvalue()
    assert json.loads(show.as_json([HOSTILE]))["stations"][0]["findings"][0]["seen"].endswith("\x1b[2J")


def test_secrets_in_json_are_masked_whatever_they_are_made_of() -> None:
    quoted = 'a"b\\c'
    visit = Visit("judge", [fail("judge", f"key {quoted} refused", Cause.JUDGE_KEY_WRONG)], 0.1)
    document = json.loads(show.as_json([run.masked(visit, [quoted])]))
    assert document["stations"][0]["findings"][0]["seen"] == f"key {run.MASK} refused"


@pytest.mark.parametrize(
    "error", [KeyError("url"), RuntimeError("tensors"), ZeroDivisionError("none"), TimeoutError("its own")]
)
def test_a_check_that_meets_something_unexpected_does_not_end_the_walk(error: Exception) -> None:
    async def broken(_: Any) -> list[Finding]:
        raise error

    async def good(_: Any) -> list[Finding]:
        return [ok("good", "all well")]

    chain = [Station("policy", broken, Cause.PROXY_AWAY), Station("traffic", good, Cause.TURNS_DROPPED)]
    look: Any = None
    first, second = asyncio.run(stations.visit(look, chain, lambda _: None))
    assert (first.findings[0].cause, first.findings[0].seen) == (
        Cause.PROXY_AWAY,
        f"the check itself failed: {type(error).__name__}: {error}",
    )
    assert second.findings[0].seen == "all well"


def test_a_check_that_takes_too_long_is_cut() -> None:
    async def slow(_: Any) -> list[Finding]:
        await asyncio.sleep(20)
        return []

    look: Any = None
    (only,) = asyncio.run(stations.visit(look, [Station("policy", slow, Cause.PROXY_AWAY, 0.01)], lambda _: None))
    assert (only.findings[0].cause, only.findings[0].seen) == (Cause.PROXY_AWAY, "no result within 0.01 s")


def test_an_unknown_station_is_a_wrong_call(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--only", "juge", "--state-dir", str(tmp_path)])
    assert "did you mean 'judge'?" in str(result.exception)
