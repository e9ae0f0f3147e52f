"""The OpenAI-compatible chat endpoint of the judge's engine: requests, retries, and what counts as absent.

429, 5xx, timeouts and broken connections are tried again with jitter, then the engine is away; failures in a row open
its circuit, and it is left alone for a while. An answer that is no JSON is tried again too, then it is this question's
failure. Refused keys and unknown models or paths are the operator's to mend: they stop the reading as well.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
from hintloop_contract.config.schema import PrmSection
from hintloop_contract.errors import DependencyError
from purgatory import AsyncCircuitBreakerFactory
from purgatory.domain.model import OpenedState
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_random_exponential

from hintloop_judge.errors import VoteError
from hintloop_judge.metrics import JudgeMetrics

DEPENDENCY = "prm-engine"
NUM_ATTEMPTS = 4
#: An answer longer than this is none that was asked for.
MAX_ANSWER_BYTES = 8 * 1024 * 1024
#: Longest wait that an engine may ask for by `Retry-After`.
MAX_RETRY_AFTER_S = 30.0
_OPERATOR = (401, 402, 403, 404, 405)


class _TransientError(Exception):
    """Worth another try, not before ``after_s`` seconds."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class _UnreadableError(_TransientError):
    """Answered with 200 and something that cannot be read."""


class ChatEndpoint:
    """One endpoint, at most ``prm.max_concurrency`` requests at once."""

    def __init__(self, section: PrmSection, metrics: JudgeMetrics | None = None, *, wait_s: float = 0.2) -> None:
        """``wait_s`` is the first back-off."""
        self._section = section
        self._metrics = metrics or JudgeMetrics()
        self._backoff = wait_random_exponential(multiplier=wait_s, max=5)
        self._gate = asyncio.Semaphore(section.max_concurrency)
        self._session: aiohttp.ClientSession | None = None
        self._model = section.judge_model or None
        self._circuits = AsyncCircuitBreakerFactory(
            default_threshold=section.circuit_failures,
            default_ttl=section.circuit_open_s,
            # A refused question and an ended process say nothing against the engine.
            exclude=[VoteError, asyncio.CancelledError],
        )
        self.circuit = "closed"

    @property
    def url(self) -> str:
        """The endpoint's base address, ``/v1`` at its end."""
        return self._section.judge_base_url

    @property
    def model(self) -> str | None:
        """The judge's model, once known."""
        return self._model

    async def resolve_model(self) -> str:
        """The configured model, or the endpoint's first. Raises ``DependencyError``."""
        try:
            body = await self._call("GET", "/models", None)
        except VoteError as error:
            raise DependencyError(DEPENDENCY, f"{self.url}/models: {error}") from error
        listed = body.get("data")
        names = [item.get("id") for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
        if self._model is None:
            if not names or not isinstance(names[0], str):
                raise DependencyError(DEPENDENCY, f"{self.url}/models names no model; set prm.judge_model")
            self._model = names[0]
        return self._model

    async def complete(
        self, prompt: str, *, temperature: float, max_tokens: int, schema: dict[str, Any] | None = None, num: int = 1
    ) -> dict[str, Any]:
        """The body of a chat completion with ``num`` choices.

        Raises:
            VoteError: the engine refused this request (400, 413, 422), or its answers cannot be read.
            DependencyError: it is away, overloaded, or refuses us altogether.
        """
        model = self._model or await self.resolve_model()
        request: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": temperature,
            "max_tokens": max_tokens,
        }
        if num > 1:
            request["n"] = num
        if schema is not None:
            request["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "verdict", "schema": schema, "strict": True},
            }
        return await self._call("POST", "/chat/completions", request)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _call(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        deadline_s = self._section.deadline_s
        # The place is kept between tries: an overloaded engine must not get others in the meantime.
        async with self._gate:
            try:
                async with asyncio.timeout(deadline_s):
                    return await self._tries(method, path, body)
            except TimeoutError as error:
                detail = f"{self.url}{path}: no answer within {deadline_s:g} s (prm.deadline_s)"
                raise DependencyError(DEPENDENCY, detail) from error
            except _UnreadableError as error:
                raise VoteError(str(error)) from error
            except _TransientError as error:
                raise DependencyError(DEPENDENCY, str(error)) from error
            except OpenedState as error:
                # The circuit raises one and the same error while it is open, which would gather every caller's frames.
                error.__traceback__ = None
                detail = f"{self.url}: left alone for {self._section.circuit_open_s:g} s after failures in a row"
                raise DependencyError(DEPENDENCY, detail) from None

    async def _tries(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(NUM_ATTEMPTS),
            wait=self._wait_s,
            retry=retry_if_exception_type(_TransientError),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                breaker = await self._circuits.get_breaker(self.url)
                try:
                    async with breaker:
                        return await self._once(method, path, body)
                finally:
                    self.circuit = breaker.context.state
        raise AssertionError("unreachable: the retry loop returns or raises")

    def _wait_s(self, state: RetryCallState) -> float:
        failed = state.outcome.exception() if state.outcome is not None else None
        asked = failed.after_s if isinstance(failed, _TransientError) else 0.0
        return max(float(self._backoff(state)), min(asked, MAX_RETRY_AFTER_S))

    async def _once(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        url = f"{self.url}{path}"
        calls = self._metrics.engine_calls
        try:
            async with self._open().request(method, url, json=body) as response:
                data = await _bounded(response)
                status, after = response.status, response.headers.get("Retry-After", "")
        except (aiohttp.ClientError, TimeoutError) as error:
            calls.labels(outcome="no_answer").inc()
            raise _TransientError(f"{url}: {type(error).__name__}: {error}") from error
        calls.labels(outcome=str(status)).inc()
        if status == 200:
            return _object(data, url)
        text = data.decode(errors="replace")[:300]
        if status == 429 or status >= 500:
            raise _TransientError(f"{url} answered {status}: {text}", float(after) if after.isdecimal() else 0.0)
        if status in _OPERATOR:
            raise DependencyError(
                DEPENDENCY, f"{url} answered {status}: {text}; check prm.prm_url, prm.prm_api_key and prm.judge_model"
            )
        raise VoteError(f"the engine refused the question ({status}): {text}")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            section = self._section
            key = section.judge_api_key.get_secret_value() or section.prm_api_key.get_secret_value()
            self._session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {key}"} if key else {},
                # The whole answer counts, however slowly it drips.
                timeout=aiohttp.ClientTimeout(total=section.timeout_s),
            )
        return self._session


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            raise _UnreadableError(f"{response.url} answered with more than {MAX_ANSWER_BYTES} bytes")
    return bytes(data)


def _object(data: bytes, url: str) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _UnreadableError(f"{url} answered with no JSON: {data[:80]!r}") from error
    if not isinstance(body, dict):
        raise _UnreadableError(f"{url} answered with {type(body).__name__}, expected a JSON object")
    return body
