"""Keeps what is known of the engines fresh: polls their health, probes in the background one that came (back) up.

No agent's request waits for a probe; until it is done answers are captured as not trainable.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import structlog

from hintloop_rollout_proxy.engines.dialect import Dialect
from hintloop_rollout_proxy.engines.probe import EngineProbe, Health
from hintloop_rollout_proxy.errors import ProbeError, said
from hintloop_rollout_proxy.upstream import Engine, EnginePool

POLL_S = 2.0
POLL_WHILE_STARTING_S = 0.5
#: Seconds until a failed probe is repeated: at first, and at most.
PROBE_AGAIN_S = 0.5
PROBE_AGAIN_MAX_S = 60.0
#: Seconds that a request waits for the engine's model name, and that no other waits for it after a failure.
NAME_TIMEOUT_S = 2.0
NAME_AGAIN_S = 2.0
#: Missed health checks in a row after which the engine may have been started anew without being seen to be gone.
FORGET_AFTER = 3

log = structlog.get_logger()


@dataclass(slots=True)
class Look:
    """What the watch did at one engine. Times are monotonic seconds."""

    probe: EngineProbe
    probing: asyncio.Task[None] | None = None
    probe_at: float = 0.0
    wait_s: float = PROBE_AGAIN_S
    name_at: float = 0.0
    missed: int = 0
    failure: str | None = None


class EngineWatch:
    """Health and facts of every engine. Ready means: one engine is healthy and its conventions are known."""

    def __init__(self, pool: EnginePool, dialect: Dialect, api_key: str) -> None:
        """Watch the engines of ``pool``; ``api_key`` may be empty."""
        self._pool = pool
        self._dialect = dialect
        self._looks = {engine.url: Look(EngineProbe(pool.session, engine.url, api_key)) for engine in pool.engines}

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
                "defaults_neutral": engine.defaults_neutral,
                "in_flight": engine.in_flight,
                "problem": self._looks[engine.url].failure,
            }
            for engine in self._pool.engines
        ]

    async def name(self, engine: Engine, adapter: str | None = None) -> None:
        """Learn under which name the engine serves, and whether it has ``adapter``, if need be.

        A failure leaves it unknown; nothing else waits.
        """
        look = self._looks[engine.url]
        known = engine.model is not None and (adapter is None or adapter in engine.adapters)
        if known or time.monotonic() < look.name_at:
            return
        await self._name_again(engine, look)
        if engine.model is None or (adapter is not None and adapter not in engine.adapters):
            look.name_at = time.monotonic() + NAME_AGAIN_S

    async def _name_again(self, engine: Engine, look: Look) -> None:
        """SGLang is renamed by new weights, and its own endpoints take the new name alone; adapters come and go."""
        try:
            engine.model, engine.adapters = await look.probe.served(NAME_TIMEOUT_S)
        except ProbeError as error:
            log.debug("model name not known", url=engine.url, error=str(error))

    async def poll(self, engine: Engine) -> None:
        """One look at one engine. One that was gone is probed anew: it may run with other settings."""
        look = self._looks[engine.url]
        health = await look.probe.health()
        if health is Health.GOOD:
            engine.healthy, look.missed = True, 0
            if engine.behaviour_space is not None:
                look.failure = None
                await self._name_again(engine, look)
            elif look.probing is None and time.monotonic() >= look.probe_at:
                look.probing = asyncio.create_task(self._learn(engine, look))
            return
        if engine.healthy:
            log.warning("engine is away", url=engine.url, health=health.value)
        engine.healthy, look.failure = False, "not reachable, or not healthy"
        look.missed += 1
        if health is Health.GONE or look.missed >= FORGET_AFTER:
            self._forget(engine, look)

    def _forget(self, engine: Engine, look: Look) -> None:
        engine.model, engine.behaviour_space, engine.defaults_neutral = None, None, False
        engine.fingerprint, engine.wants_mended, engine.adapters = None, False, frozenset()
        look.probe_at, look.wait_s = 0.0, PROBE_AGAIN_S
        if look.probing is not None:
            look.probing.cancel()
            look.probing = None

    async def _learn(self, engine: Engine, look: Look) -> None:
        """Probe one engine. A failure is repeated later and later; the reason is kept."""
        me = asyncio.current_task()
        try:
            facts = await look.probe.facts(self._dialect.name, self._dialect.tempered_space)
        except Exception as error:  # noqa: BLE001 - whatever an engine answers, the watch goes on
            if look.failure != said(error):
                log.warning("engine could not be probed; its answers will not be trained", error=said(error))
            look.failure = said(error)
            look.probe_at, look.wait_s = time.monotonic() + look.wait_s, min(2 * look.wait_s, PROBE_AGAIN_MAX_S)
        else:
            engine.model, engine.behaviour_space = facts.model, facts.behaviour_space
            engine.defaults_neutral, engine.fingerprint = facts.defaults_neutral, facts.fingerprint
            look.failure = None
            log.info("engine known", url=engine.url, **_known(engine))
        finally:
            if look.probing is me:
                look.probing = None

    async def run(self) -> None:
        """Poll for ever."""
        try:
            while True:
                await asyncio.gather(*(self.poll(engine) for engine in self._pool.engines))
                await asyncio.sleep(POLL_S if self.ready else POLL_WHILE_STARTING_S)
        finally:
            for look in self._looks.values():
                if look.probing is not None:
                    look.probing.cancel()


def _known(engine: Engine) -> dict[str, object]:
    return {name: getattr(engine, name) for name in ("model", "behaviour_space", "defaults_neutral")}
