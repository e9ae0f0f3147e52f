"""What publishing needs of an engine, whatever its dialect; and the HTTP that the dialects share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from hintloop_trainer.errors import EngineAwayError, PublishError


class EngineControl(Protocol):
    """Control of one engine worker. Every method raises ``EngineAwayError`` or ``PublishError``."""

    url: str

    async def pause(self) -> None:
        """Stop generating; requests wait, none is refused."""
        ...

    async def replace(self, directory: Path, version: int) -> None:
        """Load the weights of ``directory``, forget everything computed with the old ones, take the version."""
        ...

    async def resume(self) -> None:
        """Go on generating."""
        ...

    async def version(self) -> int | None:
        """The version that the engine reports; ``None`` when it reports none of ours."""
        ...

    async def score(self, token_ids: list[int], adapter: str | None = None) -> list[float]:
        """Log-probability of every token after the first, at temperature 1, nats; under an ``adapter`` if named."""
        ...

    async def adapters(self) -> list[str]:
        """Names of the adapters that are loaded beside the weights."""
        ...

    async def load_adapter(self, name: str, directory: Path) -> None:
        """Load a PEFT adapter from ``directory``; answers go on meanwhile."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Let an adapter go, once no answer is on its way with it."""
        ...


class EngineHttp:
    """JSON over HTTP to one engine, with its failures named."""

    def __init__(self, session: aiohttp.ClientSession, url: str, api_key: str, timeout_s: float) -> None:
        """Talk to ``url``; no call takes longer than ``timeout_s`` seconds."""
        self.url = url
        self._session = session
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=min(timeout_s, 10.0))

    async def get(self, path: str) -> Any:
        """The JSON answer of ``GET path``."""
        return await self._call("GET", path, None)

    async def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON answer of ``POST path``."""
        return await self._call("POST", path, body)

    async def tell(self, path: str, body: dict[str, Any]) -> None:
        """``POST path`` where the answer is prose and its status alone counts."""
        await self._call("POST", path, body, prose=True)

    async def _call(self, method: str, path: str, body: dict[str, Any] | None, *, prose: bool = False) -> Any:
        try:
            async with self._session.request(
                method, self.url + path, json=body, headers=self._headers, timeout=self._timeout
            ) as answer:
                text = await answer.text()
                if answer.status != 200:
                    raise PublishError(self.url, path, f"HTTP {answer.status}: {text[:300]}")
                return await answer.json(content_type=None) if text and not prose else None
        except (aiohttp.ClientConnectionError, ConnectionError) as error:
            raise EngineAwayError(self.url, path, f"{type(error).__name__}: {error}") from error
        except TimeoutError as error:
            raise PublishError(self.url, path, f"no answer within {self._timeout.total} s") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise PublishError(self.url, path, f"{type(error).__name__}: {error}") from error


@contextmanager
def reading(url: str, step: str) -> Iterator[None]:
    """Read an engine's answer; one of another form than expected is a failed ``step``.

    Raises:
        PublishError: something expected is not there.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise PublishError(url, step, f"unexpected answer: {type(error).__name__}: {error}") from error


def adapters_of(url: str, models: Any) -> list[str]:
    """Names of the adapters among ``/v1/models``: those that have a parent.

    Raises:
        PublishError: it is no list of models.
    """
    with reading(url, "list of models"):
        return [str(model["id"]) for model in models["data"] if model.get("parent")]


def as_version(reported: Any) -> int | None:
    """A reported version as an integer, ``None`` when it is none of ours (such as ``default``)."""
    try:
        return int(reported)
    except (TypeError, ValueError):
        return None


def as_logprobs(url: str, values: list[Any], count: int) -> list[float]:
    """Check a list of ``count`` log-probabilities.

    Raises:
        PublishError: one is missing, or there is another number of them.
    """
    if len(values) != count or any(not isinstance(value, int | float) for value in values):
        raise PublishError(url, "probe", f"expected {count} log-probabilities, got {values[:5]} … ({len(values)})")
    return [float(value) for value in values]
