"""Asks an engine what it does instead of assuming it: served model name, and which log-probabilities it reports.

A few tokens are sampled at temperature 0.5 and then scored as a prompt (always at temperature 1). Equal numbers
mean raw log-probabilities; different ones mean that the engine reports them after temperature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from hintloop_rollout_proxy.errors import ProbeError

TEMPERATURE = 0.5
NUM_TOKENS = 12
#: Mean difference (nats a token) below which scores are the same (bf16 engines differ by some hundredths) ...
SAME_BELOW = 0.05
#: ... and above which they are not. In between nothing is decided.
DIFFERENT_ABOVE = 0.2
PROMPTS = ("Once upon a time there was a", "The", "Random words: lamp, river,")


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """``model`` as served; ``behaviour_space`` as in ``Capture``."""

    model: str
    behaviour_space: str


@dataclass(frozen=True, slots=True)
class Scores:
    """The same tokens' log-probabilities (nats) as sampled and as scored in a prompt."""

    sampled: list[float]
    scored: list[float]


class EngineProbe:
    """Probes one engine over HTTP."""

    def __init__(self, session: aiohttp.ClientSession, url: str, api_key: str, timeout_s: float = 60.0) -> None:
        """``api_key`` may be empty."""
        self._session = session
        self._url = url
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def healthy(self) -> bool:
        """Whether ``/health`` answers 200."""
        try:
            timeout = aiohttp.ClientTimeout(total=5)
            async with self._session.get(self._url + "/health", headers=self._headers, timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def served_model(self) -> str:
        """The first model of ``/v1/models``."""
        document = await self._call("GET", "/v1/models", None)
        try:
            return str(document["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise ProbeError(f"{self._url}/v1/models names no model: {document!r:.200}") from error

    async def facts(self, engine: str, tempered_space: str) -> EngineFacts:
        """Everything that captures need to know of an engine of dialect ``engine``.

        Raises:
            ProbeError: the engine answers otherwise than its dialect says, or the scores decide nothing.
        """
        model = await self.served_model()
        seen = []
        for prompt in PROMPTS:
            try:
                scores = await (self._vllm(model, prompt) if engine == "vllm" else self._sglang(prompt))
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise ProbeError(f"{self._url} gave scores of an unknown shape: {error!r}") from error
            space = decide(scores, tempered_space)
            if space is not None:
                return EngineFacts(model, space)
            seen.append(f"{mean_difference(scores):.3f}")
        raise ProbeError(f"{self._url}: log-probabilities differ by {', '.join(seen)} nats; raw or after temperature?")

    async def _vllm(self, model: str, prompt: str) -> Scores:
        sampling = {"temperature": TEMPERATURE, "top_p": 1.0, "seed": 7, "ignore_eos": True}
        ask = {"model": model, "prompt": prompt, "max_tokens": NUM_TOKENS, "logprobs": 0, "return_token_ids": True}
        choice = (await self._call("POST", "/v1/completions", ask | sampling))["choices"][0]
        prompt_ids, ids = choice["prompt_token_ids"], choice["token_ids"]
        score = {"model": model, "prompt": prompt_ids + ids, "max_tokens": 1, "prompt_logprobs": 0}
        entries = (await self._call("POST", "/v1/completions", score))["choices"][0]["prompt_logprobs"]
        scored = [entries[len(prompt_ids) + i][str(token)]["logprob"] for i, token in enumerate(ids)]
        return Scores(sampled=[float(x) for x in choice["logprobs"]["token_logprobs"]], scored=scored)

    async def _sglang(self, prompt: str) -> Scores:
        sampling = {"max_new_tokens": NUM_TOKENS, "temperature": TEMPERATURE, "top_p": 1.0, "ignore_eos": True}
        ask = {"text": prompt, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
        meta = (await self._call("POST", "/generate", ask))["meta_info"]
        prompt_ids = [entry[1] for entry in meta["input_token_logprobs"]]
        sampled = meta["output_token_logprobs"]
        ids = [entry[1] for entry in sampled]
        score = {
            "input_ids": prompt_ids + ids,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        entries = (await self._call("POST", "/generate", score))["meta_info"]["input_token_logprobs"]
        scored = [float(entry[0]) for entry in entries[len(prompt_ids) :]]
        return Scores(sampled=[float(entry[0]) for entry in sampled], scored=scored)

    async def _call(self, method: str, path: str, document: Any) -> Any:
        body = None if document is None else msgspec.json.encode(document)
        headers = {**self._headers, "content-type": "application/json"}
        url = self._url + path
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=self._timeout
            ) as response:
                data = await response.read()
                if response.status != 200:
                    raise ProbeError(f"{url} answered {response.status}: {data[:200]!r}")
                return msgspec.json.decode(data)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
            raise ProbeError(f"{url}: {error!r}") from error


def mean_difference(scores: Scores) -> float:
    """Mean absolute difference, nats a token.

    Raises:
        ValueError: the two lists differ in length or are empty.
    """
    pairs = list(zip(scores.sampled, scores.scored, strict=True))
    if not pairs:
        raise ValueError("no token was sampled")
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


def decide(scores: Scores, tempered_space: str) -> str | None:
    """``raw``, ``tempered_space``, or ``None`` when the tokens were too certain to tell."""
    difference = mean_difference(scores)
    if difference > DIFFERENT_ABOVE:
        return tempered_space
    informative = -sum(scores.scored) / len(scores.scored) > 4 * SAME_BELOW
    return "raw" if difference < SAME_BELOW and informative else None
