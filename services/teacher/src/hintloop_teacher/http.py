"""JSON over HTTP to one engine: retries with jitter, a deadline over all tries, a circuit breaker.

429, 5xx, timeouts, broken connections and answers that are no JSON object are tried again, then the engine is away
(``DependencyError``); so are refused keys, and an engine whose circuit is open. Any other 4xx is a ``RefusedError``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

import aiohttp
from hintloop_contract.errors import DependencyError
from purgatory import AsyncCircuitBreakerFactory
from purgatory.domain.model import OpenedState
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from hintloop_teacher.errors import RefusedError

NUM_ATTEMPTS = 4
#: Longest wait that an engine may ask for by ``Retry-After``.
MAX_RETRY_AFTER_S = 30.0
#: No answer to a bounded question is longer; what goes on beyond it is none.
MAX_ANSWER_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Patience:
    """``timeout_s`` for one try with its whole answer, ``deadline_s`` for all tries of a request, ``wait_s`` the
    first back-off; after ``circuit_failures`` failed tries in a row none is made for ``circuit_open_s``."""

    timeout_s: float = 60.0
    deadline_s: float = 180.0
    wait_s: float = 0.2
    circuit_failures: int = 8
    circuit_open_s: float = 5.0


class _TransientError(Exception):
    """Worth another try, ``retry_after_s`` later if the engine says so."""

    def __init__(self, detail: str, retry_after_s: float = 0.0) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class EngineClient:
    """A client of one engine; ``dependency`` names it in errors."""

    def __init__(
        self,
        root_url: str,
        *,
        dependency: str,
        api_key: str = "",
        patience: Patience | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``sleep`` waits between tries."""
        self.root_url = root_url
        self._dependency = dependency
        self._api_key = api_key
        self._patience = patience or Patience()
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None
        self._breakers = AsyncCircuitBreakerFactory(
            default_threshold=self._patience.circuit_failures,
            default_ttl=self._patience.circuit_open_s,
            # Neither says anything about the engine: the request was at fault, or nobody waits any more.
            exclude=[RefusedError, asyncio.CancelledError],
        )

    async def get(self, path: str) -> dict[str, Any]:
        """Body of a GET."""
        return await self._call("GET", path, None)

    async def post(self, path: str, body: dict[str, Any], *, refusals: Collection[int] = ()) -> dict[str, Any]:
        """Body of a POST. ``refusals``: what else than a 4xx says here that the engine does not do this.

        Raises:
            RefusedError: 4xx.
            DependencyError: the engine is away or refuses us.
        """
        return await self._call("POST", path, body, refusals)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None, refusals: Collection[int] = ()
    ) -> dict[str, Any]:
        url = f"{self.root_url}{path}"
        try:
            async with asyncio.timeout(self._patience.deadline_s):
                return await self._tried(method, url, body, refusals)
        except TimeoutError as error:
            detail = f"{url}: no whole answer within {self._patience.deadline_s:g} s (prm.deadline_s)"
            raise DependencyError(self._dependency, detail) from error
        except OpenedState as error:
            failures, pause_s = self._patience.circuit_failures, self._patience.circuit_open_s
            detail = f"{self.root_url} failed {failures} times in a row; it is left alone for {pause_s:g} s"
            # The circuit raises one and the same error while it is open, which would gather every caller's frames.
            error.__traceback__ = None
            raise DependencyError(self._dependency, detail) from None
        except _TransientError as error:
            raise DependencyError(self._dependency, str(error)) from error

    async def _tried(
        self, method: str, url: str, body: dict[str, Any] | None, refusals: Collection[int]
    ) -> dict[str, Any]:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(NUM_ATTEMPTS),
            wait=_Wait(self._patience.wait_s),
            retry=retry_if_exception_type(_TransientError),
            sleep=self._sleep,
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                async with await self._breakers.get_breaker(self.root_url):
                    return await self._once(method, url, body, refusals)
        raise AssertionError("unreachable: the retry loop returns or raises")

    async def _once(
        self, method: str, url: str, body: dict[str, Any] | None, refusals: Collection[int]
    ) -> dict[str, Any]:
        try:
            async with self._open().request(method, url, json=body) as response:
                content = await _read(response)
                if response.status == 200:
                    return _parsed(content, url)
                status, retry_after_s = response.status, _retry_after_s(response)
                text = content[:400].decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _TransientError(f"{url}: {type(error).__name__}: {error}") from error
        if status in refusals:
            raise RefusedError(url, status, text)
        if status == 429 or status >= 500:
            raise _TransientError(f"{url} answered {status}: {text}", retry_after_s)
        if status in (401, 402, 403):
            raise DependencyError(self._dependency, f"{url} answered {status}: {text}; check the engine's API key")
        raise RefusedError(url, status, text)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else {},
                # The total covers an answer that drips in, too.
                timeout=aiohttp.ClientTimeout(total=self._patience.timeout_s),
            )
        return self._session


class _Wait:
    """Exponential with full jitter, and never less than the engine asked for."""

    def __init__(self, first_s: float) -> None:
        self._jitter = wait_random_exponential(multiplier=first_s, max=5)

    def __call__(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked_s = error.retry_after_s if isinstance(error, _TransientError) else 0.0
        return max(self._jitter(state), asked_s)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise _TransientError(f"{response.url}: an answer of more than {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _parsed(content: bytes, url: str) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        shown = content[:80].decode(errors="replace")
        raise _TransientError(f"{url} answered what is no JSON: {shown!r}") from error
    if not isinstance(body, dict):
        raise _TransientError(f"{url} answered with a JSON {type(body).__name__}, expected an object")
    return body


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    value = response.headers.get("Retry-After", "")
    return min(float(value), MAX_RETRY_AFTER_S) if value.isdecimal() else 0.0
