"""A judged turn on a real Redis, a policy engine that renders and a PRM engine that scores, both on loopback."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.broker import Broker
from hintloop_contract.messages import Capture, JudgedTurn, Judgement, LinkedTurn, Sample, Sampling, TurnRecord
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import CAPTURES, JUDGED, TURNS
from hintloop_contract.tensors import pack, unpack

from tests.scripted.scoring_engine import WireEngine, rendered, score_of, served
from tests.scripted.student import save_student

MESSAGES = [{"role": "user", "content": "ask"}]
HINT = "Answer in one short sentence."
RESPONSE = "No.;"


@pytest.fixture
def student_dir(tmp_path: Path) -> str:
    """A student whose tokens are the characters of ASCII."""
    return save_student(tmp_path / "student")


@pytest.fixture
async def broker(redis_server: Any) -> AsyncIterator[RedisBroker]:
    broker = RedisBroker(connect(redis_server.url), "default")
    await broker.ensure_groups()
    yield broker
    await broker.close()


@pytest.fixture
async def policy() -> AsyncIterator[WireEngine]:
    async with served(WireEngine("vllm")) as engine:
        yield engine


@pytest.fixture
async def prm() -> AsyncIterator[WireEngine]:
    async with served(WireEngine("vllm")) as engine:
        yield engine


def ids_of(text: str) -> list[int]:
    return [ord(char) for char in text]


async def judged(
    broker: Broker,
    turn_id: str,
    *,
    hint: str | None = HINT,
    score: int | None = -1,
    prompt: str | None = None,
    messages: list[dict[str, Any]] | None = None,
    api: str = "chat_completions",
    engine_url: str = "http://127.0.0.1:9",
) -> None:
    """Put a turn behind the judge. ``prompt``: what was served, by default ``messages`` as rendered."""
    messages = MESSAGES if messages is None else messages
    prompt_ids, response_ids = ids_of(rendered(messages) if prompt is None else prompt), ids_of(RESPONSE)
    await broker.append(
        CAPTURES, Capture(turn_id=turn_id, engine="vllm", engine_url="", request=b"{}", start_ms=0, end_ms=1)
    )
    (entry,) = await broker.read(CAPTURES, "linker", 1, 100)
    turn = LinkedTurn(
        turn_id=turn_id, session_id="s", turn_index=0, api=api, engine="vllm", engine_url=engine_url,
        behaviour_space="processed", sampling=Sampling(), version_oldest=0, version_newest=0,
        num_prompt_tokens=len(prompt_ids), num_response_tokens=len(response_ids), captured_ms=0, linked_ms=0,
    )  # fmt: skip
    record = TurnRecord(
        turn_id=turn_id, messages=json.dumps(messages).encode(), answer=json.dumps({"content": RESPONSE}).encode(),
        prompt_ids=pack(prompt_ids, "int32"), response_ids=pack(response_ids, "int32"),
        logprobs=pack([-0.5] * len(response_ids), "float32"),
    )  # fmt: skip
    await broker.commit(entry, TURNS, turn, record=record)
    (entry,) = await broker.read(TURNS, "judge", 1, 100)
    judgement = Judgement(score=score, hint=hint, backend="rules")
    await broker.commit(entry, JUDGED, JudgedTurn(turn=turn, judgement=judgement))


def check_sample(sample: Sample, *, num_hinted: int | None = None) -> None:
    """Its teacher log-probabilities are the engine's, each of its own token."""
    assert sample.teacher_logprobs is not None
    ids = ids_of(">" + RESPONSE)
    expected = [score_of(before, token) for before, token in itertools.pairwise(ids)]
    assert unpack(sample.teacher_logprobs).tolist() == pytest.approx(expected, abs=1e-6)
    if num_hinted is not None:
        assert sample.num_hinted_prompt_tokens == num_hinted
