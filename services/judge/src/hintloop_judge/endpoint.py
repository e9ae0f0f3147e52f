"""The OpenAI-compatible chat endpoint of the PRM engine: requests, retries, and what counts as absent.

429, 5xx, timeouts and broken connections are tried again with jitter, then the engine is away. Refused keys and
unknown models or paths are the operator's to mend: they too stop the reading instead of failing turns.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import structlog
from hintloop_contract.config.schema import PrmSection
from hintloop_contract.errors import DependencyError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from hintloop_judge.errors import VoteError

DEPENDENCY = "prm-engine"
NUM_ATTEMPTS = 4
_OPERATOR = (401, 402, 403, 404, 405)


class _TransientError(Exception):
    """Worth another try."""


class ChatEndpoint:
    """One endpoint, at most ``prm.max_concurrency`` requests at once."""

    def __init__(self, section: PrmSection, *, wait_s: float = 0.2) -> None:
        """``wait_s`` is the first back-off."""
        self._section = section
        self._wait_s = wait_s
        self._gate = asyncio.Semaphore(section.max_concurrency)
        self._session: aiohttp.ClientSession | None = None
        self._model = section.judge_model or None
        self._log = structlog.get_logger()

    @property
    def model(self) -> str | None:
        """The judge's model, once known."""
        return self._model

    async def resolve_model(self) -> str:
        """The configured model, or the endpoint's first. Raises ``DependencyError``."""
        body = await self._call("GET", "/models", None)
        names = [item.get("id") for item in body.get("data", []) if isinstance(item, dict)]
        if self._model is None:
            if not names or not isinstance(names[0], str):
                url = f"{self._section.base_url}/models"
                raise DependencyError(DEPENDENCY, f"{url} names no model; set prm.judge_model")
            self._model = names[0]
        return self._model

    async def complete(
        self, prompt: str, *, temperature: float, max_tokens: int, schema: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """One chat completion's body.

        Raises:
            VoteError: the engine refused this request (400, 413, 422).
            DependencyError: it is away, overloaded, or refuses us altogether.
        """
        model = self._model or await self.resolve_model()
        request: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": temperature,
            "max_tokens": max_tokens,
        }
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
        retrying = AsyncRetrying(
            stop=stop_after_attempt(NUM_ATTEMPTS),
            wait=wait_random_exponential(multiplier=self._wait_s, max=5),
            retry=retry_if_exception_type(_TransientError),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    async with self._gate:
                        return await self._once(method, path, body)
        except _TransientError as error:
            raise DependencyError(DEPENDENCY, str(error)) from error
        raise AssertionError("unreachable: the retry loop returns or raises")

    async def _once(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        url = f"{self._section.base_url}{path}"
        try:
            async with self._open().request(method, url, json=body) as response:
                if response.status == 200:
                    return _checked(await response.json(content_type=None), url)
                text = (await response.text())[:300]
                status = response.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise _TransientError(f"{url}: {type(error).__name__}: {error}") from error
        if status == 429 or status >= 500:
            raise _TransientError(f"{url} answered {status}: {text}")
        if status in _OPERATOR:
            raise DependencyError(
                DEPENDENCY, f"{url} answered {status}: {text}; check prm.prm_url, prm.prm_api_key and prm.judge_model"
            )
        raise VoteError(f"the engine refused the question ({status}): {text}")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            key = self._section.prm_api_key.get_secret_value()
            self._session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=aiohttp.ClientTimeout(total=self._section.timeout_s),
            )
        return self._session


def _checked(body: Any, url: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise _TransientError(f"{url} answered with {type(body).__name__}, expected a JSON object")
    return body
