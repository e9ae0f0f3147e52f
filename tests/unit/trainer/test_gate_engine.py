"""Probes answered by an engine of their own: what it is asked, in both dialects, and what is made of its answers."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError
from hintloop_trainer.errors import PublishError
from hintloop_trainer.gate.building import gate_from
from hintloop_trainer.gate.engine import EngineAnswerer, entropy_of
from hintloop_trainer.gate.messages import Prompt, Setup
from hintloop_trainer.publish.engines import EngineHttp
from hintloop_trainer.publish.release import Release
from hintloop_trainer.wiring import CONTROLS

from .fake_engines import FakeEngine

PROMPTS = [[3, 4], [5, 6, 7]]


class Process:
    """Stands for the process that holds the student's first weights."""

    def __init__(self) -> None:
        self.read_: list[Any] = []

    async def prompt_ids(self) -> list[list[int]]:
        return PROMPTS

    async def read(self, *arguments: Any) -> list[Any]:
        self.read_.append(arguments)
        return []

    async def close(self) -> None:
        return None


class Answering(FakeEngine):
    """Answers each prompt with its last token and the end; candidates have half and a quarter of the mass."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[dict[str, Any]] = []

    async def _completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "prompt_logprobs" in body:
            return await super()._completions(request)
        self.bodies.append(body)
        top = {"token_id:1": math.log(0.5), "token_id:2": math.log(0.25)}
        return web.json_response(
            {
                "choices": [
                    {
                        "token_ids": [body["prompt"][-1], 2],
                        "finish_reason": "stop",
                        "logprobs": {"top_logprobs": [top, top]},
                    }
                ]
            }
        )

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["sampling_params"]["max_new_tokens"] == 0:
            return await super()._generate(request)
        self.bodies.append(body)
        top = [[math.log(0.5), 1, None], [math.log(0.25), 2, None]]
        rows = [[-0.1, body["input_ids"][-1], None], [-0.1, 2, None]]
        return web.json_response(
            {
                "meta_info": {
                    "output_token_logprobs": rows,
                    "output_top_logprobs": [top, top],
                    "finish_reason": {"type": "length"},
                }
            }
        )


def setup() -> Setup:
    return Setup(
        base="base",
        tokenizer="base",
        dtype="float32",
        device="cpu",
        temperature=0.7,
        max_new_tokens=5,
        seed=3,
        batch_size=2,
        prompts=[Prompt((), tuple(prompt)) for prompt in PROMPTS],
    )


def test_entropy_counts_the_rest_as_one() -> None:
    # 1/2, 1/4 and a rest of 1/4: 1.5 bits.
    assert entropy_of([math.log(0.5), math.log(0.25)]) == pytest.approx(1.5 * math.log(2))
    assert entropy_of([0.0, -math.inf]) == 0.0


@pytest.mark.parametrize(("dialect", "ended"), [("vllm", True), ("sglang", False)])
def test_the_engine_gets_the_candidate_and_answers(dialect: str, ended: bool) -> None:
    async def look(scores: list[float]) -> tuple[Answering, Process]:
        engine, process = Answering(), Process()
        async with TestServer(engine.app()) as server:
            url = str(server.make_url("")).rstrip("/")

            def make_http(session: aiohttp.ClientSession) -> EngineHttp:
                return EngineHttp(session, url, "", 10.0)

            gate_process: Any = process
            answerer = EngineAnswerer(
                CONTROLS[dialect], make_http, gate_process, setup(), dialect=dialect, tolerance=0.01
            )
            try:
                assert await answerer.look(Release(4, Path("/weights/4"), [1, 2, 3], scores)) == []
            finally:
                await answerer.close()
        return engine, process

    engine, process = asyncio.run(look([-1.0, -1.0]))
    assert (engine.directory, engine.version, engine.paused) == ("/weights/4", "4", False)
    entropy = pytest.approx(1.5 * math.log(2))
    assert process.read_ == [([[4, 2], [7, 2]], [entropy, entropy], [ended, ended])]
    asked = [body.get("sampling_params", body) for body in engine.bodies]
    assert [body["temperature"] for body in asked] == [0.7, 0.7]
    assert sorted(body.get("seed", body.get("sampling_seed")) for body in asked) == [3, 4]
    with pytest.raises(PublishError, match="probe"):
        asyncio.run(look([-2.0, -2.0]))


def test_a_second_name_of_a_serving_engine_is_found_out(tmp_path: Path) -> None:
    config = Config.model_validate(
        {
            "model": {"student_model_path": str(tmp_path)},
            "policy": {"engines": ["http://127.0.0.1:8101"]},
            "gate": {"engine_url": "http://localhost:8101"},
        }
    )
    with pytest.raises(ConfigError, match="is 'http://127.0.0.1:8101', an engine of the policy"):
        gate_from(config, CONTROLS["vllm"])


def test_no_gate_where_none_is_wanted(tmp_path: Path) -> None:
    config = Config.model_validate({"model": {"student_model_path": str(tmp_path)}, "gate": {"enabled": False}})
    assert gate_from(config, CONTROLS["vllm"]) is None


def test_keys_arrive_where_probes_are_answered(tmp_path: Path) -> None:
    (tmp_path / "probes.jsonl").write_text("\n".join('{"prompt_ids": [1, 2]}' for _ in range(5)))
    keys = {
        "temperature": 0.25,
        "max_new_tokens": 7,
        "seed": 11,
        "batch_size": 3,
        "device": "cpu",
        "timeout_s": 9.0,
        "probe_file": tmp_path / "probes.jsonl",
    }
    model = {"student_model_path": str(tmp_path), "dtype": "float32"}
    gate = gate_from(Config.model_validate({"model": model, "gate": keys}), CONTROLS["vllm"])
    assert gate is not None
    process: Any = gate._answerer
    assert process._timeout_s == 9.0
    asked = process._setup
    assert (asked.temperature, asked.max_new_tokens, asked.seed) == (0.25, 7, 11)
    assert (asked.batch_size, asked.device, asked.dtype) == (3, "cpu", "float32")
    assert [prompt.prompt_ids for prompt in asked.prompts] == [(1, 2)] * 5
    rollout = {"temperature": 0.6}
    plain: Any = gate_from(Config.model_validate({"model": model, "rollout": rollout}), CONTROLS["vllm"])
    assert plain._answerer._setup.temperature == 0.6
    assert len(plain._answerer._setup.prompts) == 24
