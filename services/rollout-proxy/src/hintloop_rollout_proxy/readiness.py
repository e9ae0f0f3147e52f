"""Keeps what is known of the engines fresh: polls their health, probes one that came (back) up."""

from __future__ import annotations

import asyncio

import structlog

from hintloop_rollout_proxy.engines.dialect import Dialect
from hintloop_rollout_proxy.engines.probe import EngineProbe
from hintloop_rollout_proxy.errors import ProbeError
from hintloop_rollout_proxy.upstream import Engine, EnginePool

POLL_S = 2.0
POLL_WHILE_STARTING_S = 0.5

log = structlog.get_logger()


class EngineWatch:
    """Health and facts of every engine. Ready means: one engine is healthy and its conventions are known."""

    def __init__(self, pool: EnginePool, dialect: Dialect, api_key: str) -> None:
        """Watch the engines of ``pool``; ``api_key`` may be empty."""
        self._pool = pool
        self._dialect = dialect
        self._probes = {engine.url: EngineProbe(pool.session, engine.url, api_key) for engine in pool.engines}
        self._locks = {engine.url: asyncio.Lock() for engine in pool.engines}
        self._failures: dict[str, str] = {}

    @property
    def ready(self) -> bool:
        """Whether captures of at least one engine are trainable."""
        return any(engine.healthy and engine.behaviour_space is not None for engine in self._pool.engines)

    def describe(self) -> list[dict[str, object]]:
        """State of every engine, for people."""
        return [
            {
                "url": engine.url,
                "healthy": engine.healthy,
                "model": engine.model,
                "behaviour_space": engine.behaviour_space,
                "in_flight": engine.in_flight,
                "problem": self._failures.get(engine.url),
            }
            for engine in self._pool.engines
        ]

    async def know(self, engine: Engine) -> None:
        """Probe the engine unless it is known. One that cannot be probed stays unknown, and the reason is kept."""
        if engine.behaviour_space is not None:
            return
        async with self._locks[engine.url]:
            if engine.behaviour_space is not None:
                return
            probe = self._probes[engine.url]
            engine.healthy = await probe.healthy()
            if not engine.healthy:
                self._failures[engine.url] = "not reachable, or not healthy"
                return
            try:
                engine.model = await probe.served_model()
                facts = await probe.facts(self._dialect.name, self._dialect.tempered_space)
            except ProbeError as error:
                if self._failures.get(engine.url) != str(error):
                    log.warning("engine could not be probed; its answers will not be trained", error=str(error))
                self._failures[engine.url] = str(error)
                return
            engine.model, engine.behaviour_space = facts.model, facts.behaviour_space
            self._failures.pop(engine.url, None)
            log.info("engine known", url=engine.url, model=engine.model, behaviour_space=engine.behaviour_space)

    async def poll(self, engine: Engine) -> None:
        """One look at one engine. One that was away is probed anew: it may run with other settings."""
        healthy = await self._probes[engine.url].healthy()
        if not healthy:
            if engine.healthy:
                log.warning("engine is away", url=engine.url)
            engine.healthy, engine.behaviour_space = False, None
            return
        engine.healthy = True
        await self.know(engine)

    async def run(self) -> None:
        """Poll for ever."""
        while True:
            await asyncio.gather(*(self.poll(engine) for engine in self._pool.engines))
            await asyncio.sleep(POLL_S if self.ready else POLL_WHILE_STARTING_S)
