"""`hintloop keys new`, and the door of the joined PRM app."""

from __future__ import annotations

from pathlib import Path

import pytest
from hintloop.commands import app
from hintloop.errors import CommandError
from hintloop.local.prm import joined_app
from hintloop_contract.api_keys import KeyRing
from hintloop_contract.config import Config, load_config
from hintloop_judge.auth import require_key
from httpx import ASGITransport, AsyncClient
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

WHOSE = ["--tenant", "acme", "--no-train"]


@pytest.mark.parametrize(("section", "whose"), [("proxy", WHOSE), ("prm", [])])
def test_the_printed_entry_lets_the_printed_key_in(section: str, whose: list[str], tmp_path: Path) -> None:
    words = ["keys", "new", *whose, "--name", 'c"i', "--for", section]
    printed = CliRunner().invoke(app, words).stdout
    key, _, entry = printed.partition("\n\n")
    assert key not in entry
    file = tmp_path / "config.toml"
    file.write_text(entry)
    entries = getattr(load_config([file], environ={}).config, section).api_keys
    identity = KeyRing(entries).identify(key)
    assert identity is not None
    assert (identity.tenant, identity.train) == (("acme", False) if whose else ("default", True))
    assert entries[0].name == 'c"i'
    assert CliRunner().invoke(app, words).stdout.partition("\n")[0] != key


@pytest.mark.parametrize("words", [["--tenant", "acme"], ["--no-train"]])
def test_callers_of_the_prm_have_neither_tenant_nor_training(words: list[str]) -> None:
    result = CliRunner().invoke(app, ["keys", "new", "--for", "prm", *words])
    assert isinstance(result.exception, CommandError)
    assert "have no effect with --for prm" in str(result.exception)


def test_a_tenant_that_cannot_be_one_is_a_wrong_call() -> None:
    result = CliRunner().invoke(app, ["keys", "new", "--tenant", "a b"])
    assert isinstance(result.exception, CommandError)
    assert "'a b'" in str(result.exception)


@pytest.mark.parametrize("name", ["a\nb", "\x7f", "\udcff"])
def test_a_name_that_no_file_can_hold_is_a_wrong_call(name: str) -> None:
    result = CliRunner().invoke(app, ["keys", "new", "--name", name])
    assert isinstance(result.exception, CommandError)
    assert "--name" in str(result.exception)


async def test_joined_app_asks_for_a_key_but_not_at_health_ready_and_metrics() -> None:
    teacher = {"probed": False, "needed": True}
    caller = require_key(Config.model_validate({"prm": {"api_keys": ["k"]}}).prm.api_keys)
    joined = joined_app([], {"teacher": lambda: teacher}, CollectorRegistry(), caller)
    async with AsyncClient(transport=ASGITransport(joined), base_url="http://test") as http:
        assert (await http.get("/v1/prm")).status_code == 401
        assert (await http.get("/v1/prm", headers={"x-api-key": "k"})).json() == {"teacher": teacher}
        assert [(await http.get(path)).status_code for path in ("/health", "/metrics", "/ready")] == [200, 200, 503]
        teacher["probed"] = True
        assert (await http.get("/ready")).status_code == 200
