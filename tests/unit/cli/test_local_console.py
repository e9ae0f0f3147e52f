"""The console of a local stack: where it listens, what it is given, and that the stack stands without it."""

import asyncio
import socket
import sys
from pathlib import Path

import pytest
from hintloop.errors import ProcessDiedError
from hintloop.local import console, ports, resolution
from hintloop.local.processes import ProcessSpec, Supervisor
from hintloop.local.resolution import Sources
from hintloop.local.stack import Stack, StackOptions
from hintloop.local.state_dir import StateDir

CRASH = [sys.executable, "-c", "import sys; sys.exit('no page today')"]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HINTLOOP_CONSOLE__PORT", "HINTLOOP_CONSOLE__HOST"):
        monkeypatch.delenv(name, raising=False)


async def ready() -> str | None:
    return None


async def never() -> str | None:
    return "not yet"


async def test_the_end_of_what_is_not_vital_is_told_and_ends_nothing(tmp_path: Path) -> None:
    told: list[tuple[str, str, str]] = []
    supervisor = Supervisor(tmp_path, lambda *what: told.append(what))
    await supervisor.start(ProcessSpec("console", CRASH, ready, 10.0, vital=False))
    await supervisor.start(ProcessSpec("redis", [sys.executable, "-c", "import time; time.sleep(600)"], ready, 10.0))
    watching = asyncio.create_task(supervisor.watch())
    async with asyncio.timeout(60):
        while ("console", "died", "ended with exit code 1") not in told:
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)
    assert not watching.done()
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    told.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await supervisor.watch()
    assert told == [], "told once"
    await supervisor.start(ProcessSpec("proxy", CRASH, ready, 10.0))
    with pytest.raises(ProcessDiedError, match="proxy ended with exit code 1"):
        await asyncio.wait_for(supervisor.watch(), 60)
    await supervisor.stop("redis", "console")


async def test_a_console_that_dies_or_is_not_installed_holds_no_stack_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str, str]] = []
    with StateDir(tmp_path, "up") as state:
        stack = Stack(state, StackOptions(Sources()), lambda *what: told.append(what))
        stack._config = Sources().load().config
        monkeypatch.setattr(console, "spec", lambda *_: ProcessSpec("console", CRASH, never, 10.0, vital=False))
        await stack._start_console()
        assert stack._console is not None
        await asyncio.wait_for(stack._console, 60)
        assert told[-1][:2] == ("console", "died") and "exit code 1" in told[-1][2]
        monkeypatch.setattr(console, "MODULE", "no_such_package")
        await stack._start_console()
        assert "not installed" in stack.notes[-1]


def test_the_stack_gives_it_a_port_a_database_and_its_doctor(tmp_path: Path) -> None:
    plan = resolution.plan(Sources().load(), tmp_path / "state", "unix:///s", "vllm")
    resolution.write(tmp_path / "config.toml", plan.values)
    section = Sources().load(tmp_path / "config.toml").config.console
    assert section.database == tmp_path / "state" / "console.sqlite3"
    assert section.doctor_command[-3:] == ["--json", "--state-dir", str(tmp_path / "state")]
    assert ports.is_free(section.host, section.port)


def test_a_port_that_is_taken_is_told_and_another_taken(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        config.write_text(f'[console]\nport = {port}\ndatabase = "/d"\ndoctor_command = []\n')
        decided, note = console.values(Sources([config]).load(), "state")
    assert decided.keys() == {"port", "database"} and decided["port"] != port and decided["database"] == "/d"
    assert str(port) in note and str(decided["port"]) in note
    config.write_text("[console]\nport = 0\n")
    decided, note = console.values(Sources([config]).load(), "state")
    assert decided["port"] > 0 and note == ""
    config.write_text('[console]\nhost = "203.0.113.7"\n')
    decided, note = console.values(Sources([config]).load(), "state")
    assert decided["port"] == 8080 and "203.0.113.7" in note


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:81/"),
        ("0.0.0.0", "http://127.0.0.1:81/"),
        ("::", "http://[::1]:81/"),
        ("fd00::7", "http://[fd00::7]:81/"),
    ],
)
def test_its_address_can_be_opened(tmp_path: Path, host: str, url: str) -> None:
    config = tmp_path / "mine.toml"
    config.write_text(f'[console]\nport = 81\nhost = "{host}"\n')
    assert console.url(Sources([config]).load().config) == url
