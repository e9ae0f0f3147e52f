"""Turns of a deployment as a file: from its console, from what its history holds, from what was set aside."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hintloop.errors import CommandError
from hintloop.replay.export import run_export
from hintloop.replay.until import Source
from hintloop_contract.history import HistoryBounds
from hintloop_contract.messages import Capture, JudgedTurn, Judgement, LinkedTurn, Sample, Sampling, TurnRecord
from hintloop_contract.recorded import decode_line, encode_line, recorded
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import CAPTURES, JUDGED, SAMPLES, TURNS
from hintloop_contract.tensors import PackedArray, pack
from msgspec.structs import replace

RECORD = TurnRecord(
    turn_id="t1",
    messages=b'[{"role": "user", "content": "ask"}]',
    answer=b'{"role": "assistant", "content": "No."}',
    next_state=b'[{"role": "user", "content": "Longer."}]',
    prompt_ids=pack([1, 2], "int32"),
    response_ids=pack([3, 4], "int32"),
    logprobs=pack([-0.5, -0.25], "float32"),
)
TURN = LinkedTurn(
    turn_id="t1",
    session_id="s",
    turn_index=0,
    engine="vllm",
    engine_url="http://127.0.0.1:1",
    behaviour_space="processed",
    sampling=Sampling(),
    version_oldest=3,
    version_newest=3,
    num_prompt_tokens=2,
    num_response_tokens=2,
    captured_ms=5,
    linked_ms=6,
)
JUDGEMENT = Judgement(score=-1, hint="Give more detail.", backend="rules")


async def exported(tmp_path: Path, config: str, source: Source = Source.AUTO) -> None:
    """Run it in a thread, for it has a loop of its own."""
    file = tmp_path / "config.toml"
    file.write_text(config, encoding="utf-8")
    await asyncio.to_thread(run_export, tmp_path / "none", [file], source, tmp_path / "turns.jsonl")


@pytest.fixture
async def broker(redis_server: Any) -> AsyncIterator[RedisBroker]:
    broker = RedisBroker(connect(redis_server.url), "default", history=HistoryBounds(1000, 10_000_000))
    await broker.ensure_groups()
    yield broker
    await broker.close()


async def link(broker: RedisBroker) -> None:
    capture = Capture(turn_id="t1", engine="vllm", engine_url="", request=b"{}", start_ms=0, end_ms=1)
    await broker.append(CAPTURES, capture)
    (entry,) = await broker.read(CAPTURES, "linker", 1, 100)
    await broker.commit(entry, TURNS, TURN, record=RECORD)


async def test_what_the_history_holds_is_exported_with_what_was_said_of_it(
    broker: RedisBroker, redis_server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await link(broker)
    (entry,) = await broker.read(TURNS, "judge", 1, 100)
    await broker.commit(entry, JUDGED, JudgedTurn(turn=TURN, judgement=JUDGEMENT))
    (entry,) = await broker.read(JUDGED, "teacher", 1, 100)
    sample = Sample(
        turn_id="t1",
        session_id="s",
        prompt_ids=RECORD.prompt_ids,
        response_ids=RECORD.response_ids,
        behaviour_logprobs=RECORD.logprobs,
        behaviour_space="processed",
        sampling=Sampling(),
        version_oldest=3,
        version_newest=3,
        captured_ms=5,
        score=-1,
        hint=JUDGEMENT.hint,
        teacher_logprobs=pack([-0.125, -0.5], "float32"),
    )
    await broker.commit(entry, SAMPLES, sample)
    await exported(tmp_path, f"[redis]\nurl = '{redis_server.url}'\n[console]\nport = 9\n")
    assert "no console answers: taken from Redis" in capsys.readouterr().err
    (turn,) = [decode_line(line) for line in (tmp_path / "turns.jsonl").read_bytes().splitlines()]
    assert turn == recorded(TURN, RECORD, JUDGEMENT, sample)


async def test_what_was_set_aside_is_exported_while_its_record_is_kept(
    broker: RedisBroker, redis_server: Any, tmp_path: Path
) -> None:
    await link(broker)
    (entry,) = await broker.read(TURNS, "judge", 1, 100)
    assert await broker.fail(entry, stage="judge", error="ValueError: odd", traceback="", max_attempts=1)
    await exported(tmp_path, f"[redis]\nurl = '{redis_server.url}'\n", Source.DEAD)
    (turn,) = [decode_line(line) for line in (tmp_path / "turns.jsonl").read_bytes().splitlines()]
    assert turn == recorded(TURN, RECORD)


async def test_a_damaged_turn_is_told_and_takes_no_other_with_it(
    broker: RedisBroker, redis_server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, logprobs in ((1, PackedArray(dtype="float32", shape=(2,), data=b"\0")), (2, RECORD.logprobs)):
        turn, kept = replace(TURN, turn_id=f"t{number}"), replace(RECORD, turn_id=f"t{number}", logprobs=logprobs)
        capture = Capture(turn_id=turn.turn_id, engine="vllm", engine_url="", request=b"{}", start_ms=0, end_ms=1)
        await broker.append(CAPTURES, capture)
        (entry,) = await broker.read(CAPTURES, "linker", 1, 100)
        await broker.commit(entry, TURNS, turn, record=kept)
    await exported(tmp_path, f"[redis]\nurl = '{redis_server.url}'\n", Source.REDIS)
    (line,) = (tmp_path / "turns.jsonl").read_bytes().splitlines()
    assert decode_line(line).turn_id == "t2"
    assert "turn t1 is left out: " in capsys.readouterr().err


async def test_the_console_is_asked_with_the_password_and_passed_on_whole(tmp_path: Path) -> None:
    signed_in: list[Any] = []

    async def session(request: web.Request) -> web.Response:
        assert request.headers["X-Hintloop-Console"] == "1"
        signed_in.append(await request.json())
        answer = web.json_response({})
        answer.set_cookie("hintloop", "signed-in")
        return answer

    async def export(request: web.Request) -> web.StreamResponse:
        if request.cookies.get("hintloop") != "signed-in":
            return web.json_response({"error": {"message": "sign in"}}, status=401)
        line = encode_line(recorded(TURN, RECORD))
        answer = web.StreamResponse()
        await answer.prepare(request)
        # Chunks end in the middle of lines.
        for part in (line[:100], line[100:] + line[:7], line[7:]):
            await answer.write(part)
        return answer

    async def health(_: web.Request) -> web.Response:
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/api/v1/session", session)
    app.router.add_get("/api/v1/export", export)
    app.router.add_get("/health", health)
    async with TestServer(app) as server:
        config = f"[console]\nport = {server.port}\n"
        with pytest.raises(CommandError, match="answers 401"):
            await exported(tmp_path, config, Source.CONSOLE)
        await exported(tmp_path, config + "password = 'long-enough'\n")
    assert signed_in == [{"password": "long-enough"}]
    assert (tmp_path / "turns.jsonl").read_bytes() == 2 * encode_line(recorded(TURN, RECORD))


async def test_nothing_is_written_where_nothing_answers(tmp_path: Path) -> None:
    config = "[redis]\nurl = 'redis://127.0.0.1:9/0'\n[console]\nport = 9\n"
    with pytest.raises(CommandError, match="Redis does not answer"):
        await exported(tmp_path, config)
    assert os.listdir(tmp_path) == ["config.toml"]
