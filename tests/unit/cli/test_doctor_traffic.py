"""Requests that wait undecided: what their marks tell before anything is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hintloop.doctor.checks import redis, traffic
from hintloop.doctor.look import looking
from hintloop_contract.config import load_config
from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.messages import Capture
from hintloop_contract.streams import CAPTURES
from hintloop_contract.testing.memory import MemoryBroker

from .test_doctor import write_config

TITLE = {"identity": {"x-codex-turn-metadata": '{"request_kind": "title"}'}}


def capture(turn_id: str, **fields: Any) -> Capture:
    return Capture(turn_id=turn_id, engine="vllm", engine_url="http://e", request=b"{}", start_ms=1, end_ms=2, **fields)


@pytest.mark.parametrize(
    ("marked", "plain", "linked", "cause"),
    [
        ([TITLE] * 8, 0, 0, Cause.ALL_SIDE_CALLS),
        ([{"turn_type": "side"}] * 8, 4, 0, Cause.ALL_SIDE_CALLS),
        ([TITLE] * 8, 8, 0, None),
        ([TITLE] * 5, 0, 0, None),
        ([TITLE] * 8, 0, 1, None),
    ],
)
async def test_marks_of_requests_that_wait(
    tmp_path: Path, marked: list[Any], plain: int, linked: int, cause: Cause | None
) -> None:
    async with looking(load_config([write_config(tmp_path, "")], environ={})) as look:
        await look.broker.close()
        look.broker = MemoryBroker()
        await look.broker.ensure_groups()
        for number, fields in enumerate([*marked, *[{}] * plain]):
            await look.broker.append(CAPTURES, capture(f"t{number}", **fields))
        await look.broker.count("linked", linked)
        await redis.take(look)
        found = await traffic.check(look)
    assert found[0].cause is cause, found[0].seen
