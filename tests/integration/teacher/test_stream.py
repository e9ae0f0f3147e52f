"""The teacher on a real Redis and a real engine that is policy and PRM at once: judged turns in, samples out."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Capture, JudgedTurn, Judgement, LinkedTurn, Sample, Sampling, TurnRecord
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import CAPTURES, JUDGED, SAMPLES, TURNS
from hintloop_contract.tensors import pack, unpack
from hintloop_teacher.control import null_hint_control
from hintloop_teacher.wiring import build_deps, run_worker

pytestmark = pytest.mark.engine

MESSAGES = [{"role": "user", "content": "What is rain?"}]
HINT = "Answer in one short sentence."


@pytest.fixture
async def broker(redis_server: Any) -> AsyncIterator[RedisBroker]:
    broker = RedisBroker(connect(redis_server.url), "default")
    await broker.ensure_groups()
    yield broker
    await broker.close()


async def served(engine: Any) -> dict[str, Any]:
    """An answer of the engine with ids and log-probabilities."""
    body = {
        "model": engine.name,
        "messages": MESSAGES,
        "max_tokens": 16,
        "temperature": 1,
        "logprobs": True,
        "return_token_ids": True,
    }
    async with httpx.AsyncClient(timeout=180) as http:
        answer = (await http.post(f"{engine.base_url}/v1/chat/completions", json=body)).json()
    choice = answer["choices"][0]
    return {
        "prompt_ids": answer["prompt_token_ids"],
        "response_ids": choice["token_ids"],
        "logprobs": [item["logprob"] for item in choice["logprobs"]["content"]],
    }


async def put(broker: RedisBroker, engine: Any, answer: dict[str, Any], turn_id: str, hint: str | None) -> None:
    capture = Capture(turn_id=turn_id, engine="vllm", engine_url="", request=b"{}", start_ms=0, end_ms=1)
    await broker.append(CAPTURES, capture)
    (entry,) = await broker.read(CAPTURES, "linker", 1, 100)
    turn = LinkedTurn(
        turn_id=turn_id,
        session_id="s",
        turn_index=0,
        engine="vllm",
        engine_url=engine.base_url,
        behaviour_space="processed",
        sampling=Sampling(),
        version_oldest=0,
        version_newest=0,
        num_prompt_tokens=len(answer["prompt_ids"]),
        num_response_tokens=len(answer["response_ids"]),
        captured_ms=0,
        linked_ms=0,
    )
    record = TurnRecord(
        turn_id=turn_id,
        messages=json.dumps(MESSAGES).encode(),
        answer=b"{}",
        prompt_ids=pack(answer["prompt_ids"], "int32"),
        response_ids=pack(answer["response_ids"], "int32"),
        logprobs=pack(answer["logprobs"], "float32"),
    )
    await broker.commit(entry, TURNS, turn, record=record)
    (entry,) = await broker.read(TURNS, "judge", 1, 100)
    judgement = Judgement(score=-1, hint=hint, backend="rules")
    await broker.commit(entry, JUDGED, JudgedTurn(turn=turn, judgement=judgement))


async def samples(broker: RedisBroker, count: int) -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    async with asyncio.timeout(180):
        while len(found) < count:
            for entry in await broker.read(SAMPLES, "test", 10, 200):
                assert isinstance(entry.message, Sample)
                found[entry.turn_id] = entry.message
    return found


async def test_judged_turns_become_samples(
    broker: RedisBroker, vllm_policy: Any, smollm2_dir: Path, redis_server: Any
) -> None:
    config = Config.model_validate(
        {
            "model": {"student_model_path": str(smollm2_dir), "dtype": "float32"},
            "rollout": {"engine": "vllm"},
            "policy": {"engines": [vllm_policy.base_url]},
            "prm": {"prm_url": vllm_policy.base_url, "timeout_s": 180},
            "opd": {"drop_sample_without_hint": False},
        }
    )
    answer = await served(vllm_policy)
    await put(broker, vllm_policy, answer, "hinted", HINT)
    await put(broker, vllm_policy, answer, "null", None)
    deps = await build_deps(config, broker)
    stop = asyncio.Event()
    worker = asyncio.create_task(run_worker(deps, stop))
    try:
        found = await samples(broker, 2)
        # Without a hint, and with equal weights, nothing is left but rounding: on both sides.
        await null_hint_control(deps)
        report = await null_hint_control(deps)
    finally:
        stop.set()
        await worker
    assert deps.engine.report is not None
    assert deps.engine.report.dialect == "vllm"
    hinted, null = found["hinted"], found["null"]
    assert hinted.teacher_logprobs is not None and null.teacher_logprobs is not None
    # The same weights without the hint say what they said when they answered.
    difference = np.abs(unpack(null.teacher_logprobs) - unpack(null.behaviour_logprobs))
    assert difference.max() < 1e-3
    assert np.abs(unpack(hinted.teacher_logprobs) - unpack(hinted.behaviour_logprobs)).max() > 0.01
    assert hinted.num_hinted_prompt_tokens is not None
    assert hinted.num_hinted_prompt_tokens > len(answer["prompt_ids"])
    assert null.num_hinted_prompt_tokens == len(answer["prompt_ids"])
    assert unpack(hinted.response_ids).tolist() == answer["response_ids"]
    assert (report.prm.status, report.policy.status) == ("equal", "equal"), report
    assert report.policy.num_tokens == 2 * len(answer["response_ids"])
    steps = (await broker.funnel()).steps
    assert steps["scored"] == 2
