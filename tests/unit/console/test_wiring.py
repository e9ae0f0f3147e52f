"""Keys of `[console]` have their effect; what works beside the page does not end it."""

import asyncio
import os
import secrets
import signal
import socket

import pytest
import structlog
from hintloop_console.__main__ import run
from hintloop_console.wiring import deps_of, doctor_arguments, work
from hintloop_contract.config import load_config
from hintloop_contract.history import StepFigures, history_bounds
from hintloop_contract.testing.memory import MemoryBroker

from tests.unit.console.story import Story


def loaded(tmp_path, **console):
    flags = {f"console.{name}": str(value) for name, value in console.items()}
    return load_config(environ={}, flags={"console.database": str(tmp_path / "db"), **flags})


async def kept(tmp_path, number=6, **console):
    async with deps_of(loaded(tmp_path, **console), (), MemoryBroker()) as deps:
        story = Story()
        for turn in range(number):
            deps.teller.apply(story.whole(f"t{turn}", answer=f"{turn} " * 400_000))
        with deps.store.reading() as connection:
            return [row[0] for row in connection.execute("SELECT turn_id FROM turns ORDER BY seq")]


async def test_the_newest_turns_are_kept(tmp_path):
    assert await kept(tmp_path, keep_turns=2) == ["t4", "t5"]


async def test_contents_are_kept_up_to_their_bytes(tmp_path):
    async with deps_of(loaded(tmp_path, keep_mb=1), (), MemoryBroker()) as deps:
        story = Story()
        for turn in range(4):
            deps.teller.apply(story.whole(f"t{turn}", answer=secrets.token_hex(400_000)))
        with deps.store.reading() as connection:
            found = [row[0] for row in connection.execute("SELECT turn_id FROM turns ORDER BY seq")]
    assert found == ["t2", "t3"]


@pytest.mark.parametrize(
    ("console", "steps"),
    [({"history_max_entries": 3}, [5, 6, 7]), ({"history_max_mb": 1}, [6, 7]), ({"history": "false"}, [])],
)
async def test_the_history_has_the_configured_bounds(tmp_path, console, steps):
    section = loaded(tmp_path, **console).config.console
    broker = MemoryBroker(history=history_bounds(section))
    for step in range(8):
        # 480 kB that no compression makes smaller.
        figures = {secrets.token_hex(12): secrets.randbelow(2**53) / 2**60 for _ in range(14_000)}
        await broker.remember([StepFigures(step=step, figures=figures)])
    assert [entry.message.step for entry in await broker.history()] == steps
    await broker.close()


async def test_it_listens_where_it_is_configured(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = probe.getsockname()[1]
    config = loaded(tmp_path, host="127.0.0.2", port=port)
    running = asyncio.create_task(run(config, []))
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.2", port)
                break
            except OSError:
                await asyncio.sleep(0.05)
    writer.close()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 60)


async def test_the_database_lies_where_it_is_configured(tmp_path):
    async with deps_of(loaded(tmp_path, database=tmp_path / "here" / "db"), (), MemoryBroker()):
        assert (tmp_path / "here" / "db").exists()


def test_doctor_is_given_this_configuration_and_nothing_else():
    shared = ["--config", "a", "--overlay=b", "--set", "x.y=1", "--settings", "s", "--set=z.w=2"]
    assert doctor_arguments(["-v", *shared, "--once"]) == shared


@pytest.mark.parametrize("on", [True, False])
async def test_all_that_works_beside_the_page_ends_with_it(tmp_path, on):
    config = loaded(tmp_path, history=str(on).lower())
    with structlog.testing.capture_logs() as logs:
        async with deps_of(config, (), MemoryBroker()) as deps:
            stop = asyncio.Event()
            working = asyncio.create_task(work(deps, stop))
            async with asyncio.timeout(60):
                while deps.view.look.loop is None:
                    await asyncio.sleep(0.02)
            assert not working.done()
            stop.set()
            await asyncio.wait_for(working, 60)
    assert any("history is false" in entry["event"] for entry in logs) is not on


async def test_a_configuration_that_no_alarm_can_be_told_from_leaves_the_page(tmp_path, monkeypatch):
    from hintloop_contract.errors import ConfigError

    async def broken(*_):
        raise ConfigError("no loss there")

    monkeypatch.setattr("hintloop_console.wiring.watch_alarms", broken)
    async with deps_of(loaded(tmp_path), (), MemoryBroker()) as deps:
        stop = asyncio.Event()
        working = asyncio.create_task(work(deps, stop))
        await asyncio.sleep(0.2)
        assert not working.done()
        stop.set()
        await asyncio.wait_for(working, 60)
