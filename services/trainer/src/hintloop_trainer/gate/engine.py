"""Probe answers by an engine that serves no agent: it gets the candidate first, and is checked to score with it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from hintloop_trainer.errors import PublishError
from hintloop_trainer.gate.answerers import AnsweringProcess
from hintloop_trainer.gate.messages import Answer, Setup
from hintloop_trainer.publish.engines import EngineControl, EngineHttp, reading
from hintloop_trainer.publish.release import Release
from hintloop_trainer.publish.verification import Verifier

#: Candidates per token that engines are asked for: what both give without being told to at their start.
NUM_TOP = 20


@dataclass(frozen=True, slots=True)
class Generated:
    """One answer of an engine."""

    token_ids: list[int]
    top_logprobs: list[list[float]]
    """Of the likeliest tokens at every position, nats, in the engine's own space."""
    ended: bool


def entropy_of(top_logprobs: list[float]) -> float:
    """Entropy of the likeliest tokens and, as one more, all the rest, nats: no more than the whole distribution's."""
    rest = max(0.0, 1.0 - math.fsum(math.exp(value) for value in top_logprobs))
    known = -math.fsum(math.exp(value) * value for value in top_logprobs if value > -math.inf)
    return known - (rest * math.log(rest) if rest > 0 else 0.0)


class EngineAnswerer:
    """See :class:`answerers.Answerer`. What the student's first weights think is asked of the answering process."""

    def __init__(
        self,
        make_control: Callable[[EngineHttp], EngineControl],
        make_http: Callable[[aiohttp.ClientSession], EngineHttp],
        process: AnsweringProcess,
        setup: Setup,
        *,
        dialect: str,
        tolerance: float,
    ) -> None:
        """``tolerance`` bounds the mean difference of the engine's scores to the trainer's, nats per token."""
        self._make_control = make_control
        self._make_http = make_http
        self._process = process
        self._setup = setup
        self._generate = {"vllm": generate_vllm, "sglang": generate_sglang}[dialect]
        self._verifier = Verifier(tolerance)
        self._session: aiohttp.ClientSession | None = None

    async def look(self, candidate: Release) -> list[Answer]:
        """Bring the engine to the candidate, and have it answer.

        Raises:
            PublishError: it does not take the weights, does not score with them, or gives no answer.
            ConfigError, DependencyError: see :class:`answerers.Answerer`.
        """
        prompts = await self._process.prompt_ids()
        if self._session is None:
            self._session = aiohttp.ClientSession()
        http = self._make_http(self._session)
        await self._bring_to(self._make_control(http), candidate)
        slots = asyncio.Semaphore(self._setup.batch_size)

        async def answer(number: int, prompt: list[int]) -> Generated:
            async with slots:
                return await self._generate(http, prompt, self._setup, self._setup.seed + number)

        found = await asyncio.gather(*(answer(number, prompt) for number, prompt in enumerate(prompts)))
        entropies = [math.fsum(map(entropy_of, one.top_logprobs)) / len(one.top_logprobs) for one in found]
        return await self._process.read([one.token_ids for one in found], entropies, [one.ended for one in found])

    async def _bring_to(self, control: EngineControl, candidate: Release) -> None:
        await control.pause()
        try:
            await control.replace(candidate.directory, candidate.version)
        finally:
            await control.resume()
        if candidate.probe_ids:
            self._verifier.remember(candidate)
            await self._verifier.verify(control, candidate)

    async def close(self) -> None:
        """Close the connection and end the process."""
        if self._session is not None:
            await self._session.close()
        await self._process.close()


async def generate_vllm(http: EngineHttp, prompt: list[int], setup: Setup, seed: int) -> Generated:
    """An answer of a vLLM server."""
    models = await http.get("/v1/models")
    with reading(http.url, "probe answer"):
        name = models["data"][0]["id"]
    body = {
        "model": name,
        "prompt": prompt,
        "max_tokens": setup.max_new_tokens,
        "temperature": setup.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "seed": seed,
        "logprobs": NUM_TOP,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    answer = await http.post("/v1/completions", body)
    with reading(http.url, "probe answer"):
        choice = answer["choices"][0]
        tops = [sorted(row.values(), reverse=True)[:NUM_TOP] for row in choice["logprobs"]["top_logprobs"]]
        return _checked(http, choice["token_ids"], tops, choice["finish_reason"])


async def generate_sglang(http: EngineHttp, prompt: list[int], setup: Setup, seed: int) -> Generated:
    """An answer of an SGLang server."""
    sampling: dict[str, Any] = {
        "max_new_tokens": setup.max_new_tokens,
        "temperature": setup.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "sampling_seed": seed,
    }
    body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": NUM_TOP}
    answer = await http.post("/generate", body)
    with reading(http.url, "probe answer"):
        meta = answer["meta_info"]
        ids = [int(row[1]) for row in meta["output_token_logprobs"]]
        tops = [[float(item[0]) for item in row] for row in meta["output_top_logprobs"]]
        return _checked(http, ids, tops, meta["finish_reason"]["type"])


def _checked(http: EngineHttp, ids: list[int], tops: list[list[float]], finish_reason: str | None) -> Generated:
    if not ids or len(ids) != len(tops):
        raise PublishError(http.url, "probe answer", f"{len(ids)} tokens with {len(tops)} rows of log-probabilities")
    return Generated([int(token) for token in ids], tops, finish_reason == "stop")
