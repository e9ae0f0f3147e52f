"""Which policy engine renders a turn: its own while it is configured and there, else another of the same dialect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from hintloop_contract.errors import DependencyError

from hintloop_teacher.errors import RefusedError, RenderMismatchError
from hintloop_teacher.http import EngineClient

DEPENDENCY = "policy-engine"
#: An engine that was away is asked last for this long.
AWAY_S = 30.0

Result = TypeVar("Result")


class PolicyEngines:
    """The configured engines; they speak one dialect and serve one model, so any of them renders for any."""

    def __init__(self, connect: Callable[[str], EngineClient], urls: Sequence[str], dialect: str) -> None:
        """``connect`` makes the client of an engine's address; ``dialect`` is ``vllm`` or ``sglang``."""
        self._clients = {url: connect(url) for url in dict.fromkeys(url.rstrip("/") for url in urls)}
        self._dialect = dialect
        self._away_since: dict[str, float] = {}

    def client(self, url: str) -> EngineClient:
        """The client of a configured engine."""
        return self._clients[url]

    def any_client(self, preferred: str) -> EngineClient:
        """The client of ``preferred`` if it is configured, else of the first. Raises ``DependencyError`` for none."""
        url = next(iter(self._order(preferred.rstrip("/"))), None)
        if url is None:
            raise DependencyError(DEPENDENCY, "none is configured; set policy.engines")
        return self._clients[url]

    async def on_one(self, dialect: str, preferred: str, work: Callable[[str], Awaitable[Result]]) -> Result:
        """Do ``work`` on ``preferred`` if it is configured, else on the others in turn until one is there.

        Raises:
            RenderMismatchError: no configured engine speaks ``dialect``.
            DependencyError: all of them are away.
        """
        if dialect != self._dialect:
            raise RenderMismatchError(
                f"the turn was served by {dialect}, the configured policy engines are {self._dialect} (rollout.engine)"
            )
        away: DependencyError | None = None
        for url in self._order(preferred.rstrip("/")):
            try:
                result = await work(url)
            except DependencyError as error:
                self._away_since[url] = time.monotonic()
                away = error
            else:
                self._away_since.pop(url, None)
                return result
        raise away or DependencyError(DEPENDENCY, "none is configured; set policy.engines")

    def _order(self, preferred: str) -> list[str]:
        now = time.monotonic()

        def rank(url: str) -> tuple[bool, bool]:
            return now - self._away_since.get(url, -AWAY_S) < AWAY_S, url != preferred

        return sorted(self._clients, key=rank)

    async def ready(self) -> bool:
        """Whether at least one configured engine answers."""
        waiting = [asyncio.ensure_future(_answers(client)) for client in self._clients.values()]
        try:
            for answer in asyncio.as_completed(waiting):
                if await answer:
                    return True
            return False
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()


async def _answers(client: EngineClient) -> bool:
    try:
        await client.get("/v1/models")
    except (DependencyError, RefusedError):
        return False
    return True
