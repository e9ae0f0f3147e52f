"""JSON over HTTP to one engine: retries with jitter, and what counts as absent.

429, 5xx, timeouts and broken connections are tried again, then the engine is away (``DependencyError``); so are
refused keys. Any other 4xx is a ``RefusedError``.
"""

from __future__ import annotations

from typing import Any

import aiohttp
from hintloop_contract.errors import DependencyError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from hintloop_teacher.errors import RefusedError

NUM_ATTEMPTS = 4


class _TransientError(Exception):
    """Worth another try."""


class EngineClient:
    """A client of one engine; ``dependency`` names it in errors."""

    def __init__(
        self, root_url: str, *, dependency: str, api_key: str = "", timeout_s: float = 60.0, wait_s: float = 0.2
    ) -> None:
        """``wait_s`` is the first back-off."""
        self.root_url = root_url
        self._dependency = dependency
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str) -> Any:
        """Body of a GET."""
        return await self._call("GET", path, None)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Body of a POST.

        Raises:
            RefusedError: 4xx.
            DependencyError: the engine is away or refuses us.
        """
        return await self._call("POST", path, body)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(NUM_ATTEMPTS),
            wait=wait_random_exponential(multiplier=self._wait_s, max=5),
            retry=retry_if_exception_type(_TransientError),
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await self._once(method, f"{self.root_url}{path}", body)
        except _TransientError as error:
            raise DependencyError(self._dependency, str(error)) from error
        raise AssertionError("unreachable: the retry loop returns or raises")

    async def _once(self, method: str, url: str, body: dict[str, Any] | None) -> Any:
        try:
            async with self._open().request(method, url, json=body) as response:
                if response.status == 200:
                    return await response.json(content_type=None)
                status, text = response.status, (await response.text())[:400]
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise _TransientError(f"{url}: {type(error).__name__}: {error}") from error
        if status == 429 or status >= 500:
            raise _TransientError(f"{url} answered {status}: {text}")
        if status in (401, 402, 403):
            raise DependencyError(self._dependency, f"{url} answered {status}: {text}; check the engine's API key")
        raise RefusedError(url, status, text)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else {},
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            )
        return self._session
