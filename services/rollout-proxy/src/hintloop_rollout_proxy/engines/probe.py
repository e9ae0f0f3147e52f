"""Asks an engine what it does instead of assuming it: served model name, and which log-probabilities it reports.

A few tokens are sampled at temperature 0.5 and then scored as a prompt (always at temperature 1). Equal numbers
mean raw log-probabilities; different ones mean that the engine reports them after temperature. Whether parameters
left out mean temperature 1 is asked in the same way, of one token's alternatives, or read from the engine's settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import aiohttp
import msgspec
import structlog

from hintloop_rollout_proxy.errors import ProbeError, said

TEMPERATURE = 0.5
NUM_TOKENS = 12
#: Mean difference (nats a token) below which scores are the same (bf16 engines differ by some hundredths) ...
SAME_BELOW = 0.05
#: ... and above which they are not. In between nothing is decided.
DIFFERENT_ABOVE = 0.2
#: Largest difference (nats) of one token's log-probability by which two equal requests may differ; keeping 95 % of
#: the mass adds 0.05.
DEFAULTS_WITHIN = 0.02
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
NUM_ALTERNATIVES = 5
#: The last repeats itself, where a penalty would show.
DEFAULTS_PROMPTS = ("Once upon a time there was a", "The", "one two one two one two one")
PROMPTS = ("Once upon a time there was a", "The", "Random words: lamp, river,")


log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """``model`` as served; ``behaviour_space`` as in ``Capture``; ``defaults_neutral``: proven to add nothing;
    ``fingerprint``: the ``system_fingerprint`` of its answers, if they have one."""

    model: str
    behaviour_space: str
    defaults_neutral: bool = False
    fingerprint: str | None = None


class Health(Enum):
    """``GONE``: nothing listens, so the process ended. ``BAD``: it listens, and does not say that it is well."""

    GOOD = "good"
    BAD = "bad"
    GONE = "gone"


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
        self._fingerprint: str | None = None

    async def health(self) -> Health:
        """How ``/health`` answers."""
        try:
            timeout = aiohttp.ClientTimeout(total=5)
            async with self._session.get(self._url + "/health", headers=self._headers, timeout=timeout) as response:
                return Health.GOOD if response.status == 200 else Health.BAD
        except aiohttp.ClientConnectorError as error:
            return Health.GONE if isinstance(error.os_error, ConnectionRefusedError) else Health.BAD
        except (aiohttp.ClientError, TimeoutError, OSError):
            return Health.BAD

    async def served_model(self) -> str:
        """The first model of ``/v1/models``; raises ``ProbeError``."""
        return (await self.served())[0]

    async def served(self, timeout_s: float | None = None) -> tuple[str, frozenset[str]]:
        """The first model of ``/v1/models``, and the adapters among the others; raises ``ProbeError``."""
        document = await self._call("GET", "/v1/models", None, timeout_s)
        try:
            first, *others = document["data"]
            return str(first["id"]), frozenset(str(model["id"]) for model in others if model.get("parent"))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
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
                space, difference = decide(scores, tempered_space), mean_difference(scores)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise ProbeError(f"{self._url} gave scores of an unknown shape: {error!r}") from error
            if space is not None:
                neutral = await self._defaults_neutral(engine, model, space)
                return EngineFacts(model, space, neutral, self._fingerprint)
            seen.append(f"{difference:.3f}")
        raise ProbeError(f"{self._url}: log-probabilities differ by {', '.join(seen)} nats; raw or after temperature?")

    async def _defaults_neutral(self, engine: str, model: str, space: str) -> bool:
        """Whether what a request leaves out is proven to mean temperature 1 without truncation; false when unknown."""
        try:
            if engine != "vllm":
                return await self._sglang_neutral()
            # Raw log-probabilities do not show what was sampled from.
            return space != "raw" and await self._vllm_neutral(model)
        except (ProbeError, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            log.info("sampling defaults not seen", url=self._url, error=said(error))
            return False

    async def _vllm_neutral(self, model: str) -> bool:
        for prompt in DEFAULTS_PROMPTS:
            ask = {"model": model, "prompt": prompt, "max_tokens": 1, "logprobs": NUM_ALTERNATIVES}
            ask["return_tokens_as_token_ids"] = True
            # The first fills the prefix cache, so that the others are computed in the same way.
            await self._alternatives(ask | NEUTRAL)
            if not same_alternatives(await self._alternatives(ask), await self._alternatives(ask | NEUTRAL)):
                return False
        return True

    async def _alternatives(self, ask: dict[str, Any]) -> dict[str, float]:
        choice = (await self._call("POST", "/v1/completions", ask))["choices"][0]
        return {str(token): float(value) for token, value in choice["logprobs"]["top_logprobs"][0].items()}

    async def _sglang_neutral(self) -> bool:
        try:
            settings = await self._call("GET", "/server_info", None)
        except ProbeError:
            settings = await self._call("GET", "/get_server_info", None)
        return settings["sampling_defaults"] == "openai" and not settings.get("preferred_sampling_params")

    async def _vllm(self, model: str, prompt: str) -> Scores:
        sampling = {"temperature": TEMPERATURE, "top_p": 1.0, "seed": 7, "ignore_eos": True}
        ask = {"model": model, "prompt": prompt, "max_tokens": NUM_TOKENS, "logprobs": 0, "return_token_ids": True}
        answer = await self._call("POST", "/v1/completions", ask | sampling)
        self._fingerprint, choice = answer.get("system_fingerprint"), answer["choices"][0]
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

    async def _call(self, method: str, path: str, document: Any, timeout_s: float | None = None) -> Any:
        body = None if document is None else msgspec.json.encode(document)
        headers = {**self._headers, "content-type": "application/json"}
        url = self._url + path
        timeout = self._timeout if timeout_s is None else aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(method, url, data=body, headers=headers, timeout=timeout) as response:
                data = await response.read()
                if response.status != 200:
                    raise ProbeError(f"{url} answered {response.status}: {data[:200]!r}")
                return msgspec.json.decode(data)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
            raise ProbeError(f"{url}: {said(error)}") from error


def mean_difference(scores: Scores) -> float:
    """Mean absolute difference, nats a token.

    Raises:
        ValueError: the two lists differ in length or are empty.
    """
    pairs = list(zip(scores.sampled, scores.scored, strict=True))
    if not pairs:
        raise ValueError("no token was sampled")
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


def same_alternatives(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether two requests saw one distribution: log-probabilities (nats) by token, of which most are in both."""
    common = one.keys() & other.keys()
    return len(common) >= NUM_ALTERNATIVES - 1 and all(abs(one[t] - other[t]) < DEFAULTS_WITHIN for t in common)


def decide(scores: Scores, tempered_space: str) -> str | None:
    """``raw``, ``tempered_space``, or ``None`` when the tokens were too certain to tell."""
    difference = mean_difference(scores)
    if difference > DIFFERENT_ABOVE:
        return tempered_space
    informative = -sum(scores.scored) / len(scores.scored) > 4 * SAME_BELOW
    return "raw" if difference < SAME_BELOW and informative else None
