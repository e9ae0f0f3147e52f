"""The console as a process, on a real Redis: hops become rows while Redis and the console come and go."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
from hintloop_console import lists
from hintloop_console.reader import Reader
from hintloop_console.store import Store
from hintloop_console.telling import Teller
from hintloop_contract.codec import encode_payload
from hintloop_contract.history import HistoryBounds, StepFigures
from hintloop_contract.messages import Capture, Drop
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import CAPTURES, JUDGED, SAMPLES, TURNS

from tests.unit.console.story import Story, judged, linked, record, sample, trained

BOUNDS = HistoryBounds(10_000, 50_000_000)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def console(url, folder, port, **more):
    """A running console that answers."""
    settings = {"redis.url": url, "console.port": port, "console.database": folder / "db", **more}
    flags = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "hintloop_console", *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HINTLOOP_")}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        deadline = time.monotonic() + 180
        while process.poll() is None and time.monotonic() < deadline:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=30).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def get(port, path):
    return httpx.get(f"http://127.0.0.1:{port}/api/v1{path}", timeout=60).json()


def until(seen, timeout_s=180.0):
    """Look until something is seen."""
    deadline = time.monotonic() + timeout_s
    while not (found := seen()):
        assert time.monotonic() < deadline, "it was not seen in time"
        time.sleep(0.05)
    return found


async def hops(url, turn_ids):
    """Turns through every stream, as the services commit them."""
    broker = RedisBroker(connect(url), "default", history=BOUNDS)
    await broker.ensure_groups()
    for turn_id in turn_ids:
        capture = Capture(turn_id=turn_id, engine="vllm", engine_url="http://e", request=b"{}", start_ms=1, end_ms=2)
        await broker.append(CAPTURES, capture)
        message = {TURNS: linked(turn_id), JUDGED: judged(turn_id), SAMPLES: sample(turn_id)}
        for source, out in ((CAPTURES, TURNS), (TURNS, JUDGED), (JUDGED, SAMPLES)):
            [entry] = await broker.read(source, "worker-1", 1, 10)
            await broker.commit(entry, out, message[out], record=record(turn_id) if out is TURNS else None)
        await broker.remember([trained(turn_id), StepFigures(step=7, version=8, figures={"loss": 0.5})])
    await broker.drop_many([Drop(turn_id=f"side-{turn_ids[0]}", stage="capture", reason="side")])
    await broker.close()


def stages(port):
    return {row["turn_id"]: row["stage"] for row in get(port, "/turns?limit=1000")["rows"]}


def test_hops_become_rows_over_restarts_of_console_and_redis(redis_server, tmp_path):
    port = free_port()
    asyncio.run(hops(redis_server.url, ["before-it-began"]))
    with console(redis_server.url, tmp_path, port) as process:
        until(lambda: stages(port) == {"before-it-began": "trained"})
        asyncio.run(hops(redis_server.url, ["a", "b"]))
        until(lambda: len(stages(port)) == 3)
        redis_server.kill()
        until(lambda: httpx.get(f"http://127.0.0.1:{port}/ready", timeout=60).status_code == 503)
        assert len(stages(port)) == 3, "what was read is shown while Redis is away"
        redis_server.start()
        asyncio.run(hops(redis_server.url, ["after-redis"]))
        until(lambda: len(stages(port)) == 4)
        process.kill()
    asyncio.run(hops(redis_server.url, ["while-it-was-away"]))
    with console(redis_server.url, tmp_path, port) as process:
        until(lambda: len(stages(port)) == 5)
        assert set(stages(port).values()) == {"trained"}
        drops = get(port, "/drops")
        assert drops["reasons"] == {"capture:side": 4}, "none twice, none lost"
        assert get(port, "/advantages")["tokens"] == 15
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0


async def test_a_redis_that_lost_everything_is_read_from_its_beginning(redis_server, tmp_path):
    await hops(redis_server.url, ["a"])
    store = Store(tmp_path / "db")
    teller = Teller(store, keep_turns=10, keep_bytes=10**9)
    broker = RedisBroker(connect(redis_server.url), "default", history=BOUNDS)

    async def read() -> None:
        stop, reader = asyncio.Event(), Reader(broker, teller)
        running = asyncio.create_task(reader.run(stop))
        await asyncio.wait_for(reader.next_change.wait(), 120)
        stop.set()
        await asyncio.wait_for(running, 120)

    await read()
    await broker.client.flushall()
    # As on a machine whose clock is behind: its ids are below those read before.
    data = encode_payload(StepFigures(step=5, figures={}))
    fields = {"kind": "step", "v": 1, "turn_id": "", "tenant": "default", "data": data}
    await broker.client.xadd(broker.keys.history, fields, id="1000-0")
    await read()
    with store.reading() as connection:
        assert [row["step"] for row in lists.steps(connection, "", 9)["rows"]] == [5]
        assert lists.turns(connection, lists.TurnFilter(), "", 9)["total"] == 1, "what was read before stays"
    await broker.close()
    store.close()


def test_events_come_while_turns_are_made_and_end_with_the_console(redis_server, tmp_path):
    port = free_port()
    with console(redis_server.url, tmp_path, port) as process:
        heard = []
        with httpx.stream("GET", f"http://127.0.0.1:{port}/api/v1/events", timeout=180) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert "content-encoding" not in stream.headers
            kind = ""
            for line in stream.iter_lines():
                name, _, value = line.partition(": ")
                kind = value if name == "event" else kind
                if name != "data":
                    continue
                heard.append((kind, json.loads(value)))
                if len(heard) == 1:
                    asyncio.run(hops(redis_server.url, ["a"]))
                if {"turn", "step"} <= {kind for kind, _ in heard}:
                    process.send_signal(signal.SIGTERM)
                    break
            assert heard[0][0] == "loop"
        assert process.wait(90) == 0


def test_ten_thousand_turns_are_listed_without_looking_at_all_of_each(tmp_path):
    store, story = Store(tmp_path / "db"), Story()
    teller = Teller(store, keep_turns=20_000, keep_bytes=10**10)
    entries = [
        story.entry("turn", linked(f"t{n}", session_id=f"s{n % 700}"), record(f"t{n}", said=f"question number {n}"))
        for n in range(10_000)
    ]
    for start in range(0, len(entries), 500):
        teller.apply(entries[start : start + 500])
    hundreds = []
    with store.reading() as connection:
        # Instructions of SQLite's machine, which no other work on this one changes: about ten a row that is looked at.
        connection.set_progress_handler(lambda: hundreds.append(1), 100)
        for most, look in (
            (80_000, lambda: lists.turns(connection, lists.TurnFilter(), "", 1000)),
            (80_000, lambda: lists.turns(connection, lists.TurnFilter(), "2000", 1000)),
            (10_000, lambda: lists.turns(connection, lists.TurnFilter(q="question number 77"), "", 100)),
            (500_000, lambda: lists.sessions(connection, "", "", 100)),
        ):
            hundreds.clear()
            assert look()["rows"]
            assert 100 * len(hundreds) < most
        connection.set_progress_handler(None, 0)
    store.close()


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "hintloop_console", "--set", f"console.port={port}"]
        ended = subprocess.run(
            [*command, "--set", f"console.database={tmp_path / 'db'}"], capture_output=True, text=True, timeout=180
        )
    assert ended.returncode == 2 and "console.port" in ended.stderr and "choose another" in ended.stderr
