"""The proxy before a scripted engine: what is captured is what was sampled, in both engines' shapes."""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from hintloop_contract.messages import Capture
from hintloop_contract.tensors import unpack
from hintloop_contract.testing.memory import MemoryBroker

from tests.scripted.answers import STREAM_FAULTS, Call, Fault, Scripted
from tests.scripted.engine import ScriptedEngine, serving

from .conftest import make_config, start_proxy

SAID = Scripted(
    content="Let me look.", reasoning="They ask for weather.", calls=(Call("get_weather", '{"city": "Łódź"}', "c1"),)
)
ASK = {"model": "policy", "messages": [{"role": "user", "content": "Weather?"}]}


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_captured_is_what_was_sampled(kind: str, tmp_path: Path) -> None:
    said: list[Scripted] = []
    broker = MemoryBroker()
    await broker.ensure_groups()
    async with serving(ScriptedEngine(kind, lambda asked: said[-1])) as engine:
        served: Any = engine
        async with start_proxy(make_config(served, tmp_path / "spool"), broker) as running:
            for stream, fault in itertools.product((False, True), (None, *Fault)):
                said.append(replace(SAID, fault=fault))
                with contextlib.suppress(aiohttp.ClientPayloadError):
                    await running.ask({**ASK, "stream": stream})
                (capture,) = await running.captures()
                if fault is not None and (stream or fault not in STREAM_FAULTS):
                    assert capture.problem is not None, fault
                else:
                    check_true(capture, engine)
    await broker.close()


def check_true(capture: Capture, engine: ScriptedEngine) -> None:
    assert capture.problem is None, capture.problem_detail
    truth = engine.truth[capture.response_id or ""]
    prompt_ids, response_ids, logprobs = capture.prompt_ids, capture.response_ids, capture.logprobs
    assert prompt_ids is not None and response_ids is not None and logprobs is not None
    assert tuple(unpack(prompt_ids)) == truth.prompt_ids
    assert tuple(unpack(response_ids)) == truth.response_ids
    np.testing.assert_array_equal(unpack(logprobs), np.array(truth.logprobs, np.float32))
    assert capture.answer is not None
    answer = json.loads(capture.answer)
    assert answer["content"] == SAID.content
    assert answer["tool_calls"][0]["function"]["arguments"] == '{"city": "Łódź"}'


async def test_a_stream_without_its_last_chunk_is_no_sample(tmp_path: Path) -> None:
    """Each chunk of ``/generate`` counts itself, so that the counts of an answer cut after its first one agree."""
    said = replace(SAID, fault=Fault.LOST_CHUNK, at=0.999, together=3)
    broker = MemoryBroker()
    await broker.ensure_groups()
    async with serving(ScriptedEngine("sglang", lambda asked: said)) as engine:
        served: Any = engine
        async with start_proxy(make_config(served, tmp_path / "spool"), broker) as running:
            asked = {"text": "Once", "sampling_params": {"max_new_tokens": 9}, "stream": True}
            async with running.session.post(running.url + "/generate", json=asked) as response:
                await response.read()
            (capture,) = await running.captures()
    await broker.close()
    assert (capture.problem, capture.finish_reason) == ("aborted", None)
