"""The proxy before a scripted engine: what is captured is what was sampled, in both engines' shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hintloop_contract.tensors import unpack
from hintloop_contract.testing.memory import MemoryBroker

from tests.scripted.answers import Call, Fault, Scripted
from tests.scripted.engine import ScriptedEngine, serving

from .conftest import make_config, start_proxy

SAID = Scripted(
    content="Let me look.", reasoning="They ask for weather.", calls=(Call("get_weather", '{"city": "Łódź"}', "c1"),)
)
ASK = {"model": "policy", "messages": [{"role": "user", "content": "Weather?"}]}


@pytest.mark.parametrize("fault", [None, *Fault])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_captured_is_what_was_sampled(kind: str, stream: bool, fault: Fault | None, tmp_path: Path) -> None:
    said = Scripted(content=SAID.content, reasoning=SAID.reasoning, calls=SAID.calls, fault=fault)
    broker = MemoryBroker()
    await broker.ensure_groups()
    async with serving(ScriptedEngine(kind, lambda asked: said)) as engine:
        async with start_proxy(make_config(engine, tmp_path / "spool"), broker) as running:
            await running.ask({**ASK, "stream": stream})
            (capture,) = await running.captures()
    await broker.close()
    whole = not stream and fault in (Fault.DUPLICATED_CHUNK, Fault.GARBAGE_CHUNK)
    if fault is not None and not whole:
        assert capture.problem is not None
        return
    assert capture.problem is None, capture.problem_detail
    truth: Any = engine.truth[capture.response_id or ""]
    assert tuple(unpack(capture.prompt_ids)) == truth.prompt_ids
    assert tuple(unpack(capture.response_ids)) == truth.response_ids
    np.testing.assert_array_equal(unpack(capture.logprobs), np.float32(truth.logprobs))
    assert capture.answer is not None
    answer = json.loads(capture.answer)
    assert answer["content"] == SAID.content
    assert answer["tool_calls"][0]["function"]["arguments"] == '{"city": "Łódź"}'
