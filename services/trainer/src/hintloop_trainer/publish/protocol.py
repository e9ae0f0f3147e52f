"""The publishing sequence: pause, replace, resume, probe; released only when every engine that answers has it.

New weights go by the configured transport, adapters their own way (:mod:`adapters`). The way back after a failure and
whatever the reconciler does is by disk: it needs nothing of what may just have failed.

The probe comes after resuming because a paused engine answers no one. Until every engine has passed it, the weights
are ``updating``: answers made meanwhile span two versions and are not trained.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
from hintloop_contract.broker import Broker, WeightsState
from hintloop_contract.errors import DependencyError

from hintloop_trainer.errors import EngineAwayError, PublishError
from hintloop_trainer.publish import release as releases
from hintloop_trainer.publish.adapters import LOADED, loaded_version, put_adapter, unload_old
from hintloop_trainer.publish.engines import EngineControl
from hintloop_trainer.publish.release import Release
from hintloop_trainer.publish.transport import DiskTransport, Transport
from hintloop_trainer.publish.verification import Verifier

#: Largest mean difference per token between engine and trainer on the probe, nats.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.05}
#: Tries to resume an engine, with growing waits between: one that stays paused answers no agent.
RESUME_TRIES, RESUME_WAIT_S = 4, 0.25
#: A request that has been answered for longer than this is forgotten, milliseconds.
LONGEST_ANSWER_MS = 3_600_000


async def update_engine(
    control: EngineControl, release: Release, verifier: Verifier, transport: Transport
) -> tuple[str, float]:
    """Bring one engine to ``release``; the way it went, and the probe's mean difference, nats.

    The engine is resumed whatever happens.

    Raises:
        EngineAwayError: it does not answer.
        PublishError: a step failed, or the engine scores the probe otherwise than the trainer.
    """
    if release.adapter is not None:
        return "adapter", await put_adapter(control, release.adapter, release, verifier)
    try:
        await control.pause()
        way = await transport.put(control, release)
    finally:
        await _resume(control)
    return way, await verifier.verify(control, release)


async def _resume(control: EngineControl) -> None:
    for attempt in range(1, RESUME_TRIES):
        try:
            await control.resume()
        except EngineAwayError:
            raise
        except PublishError:
            await asyncio.sleep(attempt * RESUME_WAIT_S)
        else:
            return
    await control.resume()


async def _served_version(control: EngineControl, release: Release) -> int | None:
    """What an engine serves of releases like ``release``, as it says itself."""
    if release.adapter is not None:
        return await loaded_version(control, release.version)
    return await control.version()


class Publisher:
    """Releases versions to the engines of one policy and keeps them there."""

    def __init__(
        self,
        broker: Broker,
        engines: Sequence[EngineControl],
        *,
        weights_dir: Path,
        tolerance: float,
        keep_versions: int,
        transport: Transport | None = None,
    ) -> None:
        """``weights_dir`` is mounted at the same path for trainer and engines. New weights go by ``transport``, or
        by disk."""
        self._broker = broker
        self._engines = engines
        self._weights_dir = weights_dir
        self._keep = keep_versions
        self._verifier = Verifier(tolerance)
        self._disk = DiskTransport()
        self._transport: Transport = transport or self._disk
        self._tidying: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        self._log = structlog.get_logger()
        self.current: Release | None = None
        self.reported: dict[str, int | None] = {}
        """What each engine serves, as it says itself; ``None`` when it does not answer."""
        self._seen: dict[str, int] = {}
        """What each engine said last, when it answered: it may come back with that."""
        self._verified: set[str] = set()
        """Engines whose probe passed under ``current``; what an engine reports is no proof."""
        self._mark: int | None = None
        """What ``updating`` holds in Redis."""
        self._settled_ms: int | None = None
        """When the engines were found to be at ``current`` again, while a mark stands."""

    async def restore(self) -> None:
        """Take up what an earlier run released last, so that a failed publish has a way back; its leftovers go.

        Raises:
            DependencyError: Redis is away.
        """
        releases.remove_leftovers(self._weights_dir)
        self.current = releases.read_current(self._weights_dir)
        self._mark = (await self._broker.weights()).updating
        if self.current:
            self._verifier.remember(self.current)

    async def take_version(self, above: int = 0) -> int:
        """A version never used before, above ``above`` and above all that is on disk: Redis may have lost its count.

        Raises:
            DependencyError: Redis is away.
        """
        used = [above, *releases.versions_on_disk(self._weights_dir)]
        if self.current:
            used.append(self.current.version)
        while (version := await self._broker.next_version()) <= max(used):
            pass
        return version

    async def publish(self, release: Release) -> None:
        """Bring every engine that answers to ``release`` and make it the current one.

        An engine that is away is left to :meth:`reconcile`. After a failure the engines are brought back to the
        version before, as far as they let themselves; ``updating`` stays set until :meth:`reconcile` or the next
        attempt knows what they serve.

        Raises:
            PublishError: an engine answers and did not take the weights.
            DependencyError: no engine answers, or Redis is away.
        """
        async with self._changing:
            await self._mark_as(release.version)
            self._verifier.remember(release)
            try:
                await asyncio.to_thread(releases.write_note, release)
                await self._update_all(release)
                releases.point_current(self._weights_dir, release)
            except OSError as error:
                await self._go_back()
                raise PublishError(str(release.directory), "write", f"{type(error).__name__}: {error}") from error
            except PublishError:
                await self._go_back()
                raise
            self.current = release
            await self._broker.set_weights(WeightsState(current=release.version, updating=None))
            self._mark = self._settled_ms = None
            await self._say_versions()
            self._prune()
            self._tidy(release)

    async def _mark_as(self, version: int) -> None:
        """Let answers that are made from now on count as made by two versions."""
        before = self.current.version if self.current else (await self._broker.weights()).current
        await self._broker.set_weights(WeightsState(current=before, updating=version))
        self._mark, self._settled_ms = version, None

    async def _update_all(self, release: Release) -> None:
        self._verified.clear()
        away: list[EngineAwayError] = []
        for control in self._engines:
            try:
                await self._update(control, release, self._transport)
            except EngineAwayError as error:
                self._log.warning("engine away, left for later", engine=control.url, detail=str(error))
                self._reports(control, None)
                away.append(error)
        if away and len(away) == len(self._engines):
            raise DependencyError("policy engines", str(away[0]))

    async def _update(self, control: EngineControl, release: Release, transport: Transport) -> None:
        """The whole sequence on one engine; it counts as verified only after the last step."""
        self._verified.discard(control.url)
        started = time.perf_counter()
        way, difference = await update_engine(control, release, self._verifier, transport)
        self._verified.add(control.url)
        self._reports(control, release.version)
        self._log.info(
            "engine updated",
            engine=control.url,
            version=release.version,
            by=way,
            seconds=round(time.perf_counter() - started, 3),
            probe_difference=round(difference, 6),
        )

    def _reports(self, control: EngineControl, version: int | None) -> None:
        self.reported[control.url] = version
        if version is not None:
            self._seen[control.url] = version

    async def _go_back(self) -> None:
        """Bring the engines to the version before a failed publish. What fails here, :meth:`reconcile` tries again."""
        if self.current is None:
            return
        for control in self._engines:
            try:
                await self._update(control, self.current, self._disk)
            except PublishError as error:
                self._log.warning("engine not brought back", engine=control.url, detail=str(error))

    def _prune(self) -> None:
        """Delete versions that no engine was last seen with and that are not among the newest."""
        versions = releases.versions_on_disk(self._weights_dir)
        # Engines read an adapter again whenever it was put aside for others.
        keep = max(self._keep, LOADED) if self.current and self.current.adapter else self._keep
        kept = {*versions[-keep:], *self._seen.values()}
        if self.current:
            kept.add(self.current.version)
        for version in versions:
            if version in kept:
                continue
            try:
                shutil.rmtree(self._weights_dir / str(version))
            except OSError as error:
                self._log.warning("old weights not deleted", version=version, detail=str(error))

    def _tidy(self, release: Release) -> None:
        """Let old adapters go, beside everything else: an engine may wait for long answers before it does."""
        if release.adapter is None or self._tidying:
            return
        for control in self._engines:
            task = asyncio.create_task(unload_old(control, release.version))
            self._tidying.add(task)
            task.add_done_callback(self._tidying.discard)

    async def close(self) -> None:
        """Let go of what is held between releases."""
        await self._transport.close()

    async def reconcile(self) -> None:
        """Bring engines that are not at the current version there. Failures are logged and tried again later.

        Raises:
            DependencyError: Redis is away.
        """
        if self.current is None or self._changing.locked():
            return
        async with self._changing:
            settled = [await self._reconcile_one(control, self.current) for control in self._engines]
            await self._clear_mark(all(settled))
            await self._say_versions()

    async def _reconcile_one(self, control: EngineControl, release: Release) -> bool:
        """Whether the engine serves ``release`` or, being away, nobody."""
        try:
            found = await _served_version(control, release)
            self._reports(control, found)
            if found == release.version and control.url in self._verified:
                return True
            self._log.warning("engine behind", engine=control.url, found=found, current=release.version)
            if self._mark is None:
                # A number that no weights ever get: what was answered under it descends from nothing.
                await self._mark_as(await self.take_version())
            await self._update(control, release, self._disk)
        except EngineAwayError:
            self._reports(control, None)
        except PublishError as error:
            self._log.error("engine not brought up to date", engine=control.url, detail=str(error))
            return False
        return True

    async def _clear_mark(self, settled: bool) -> None:
        """End ``updating`` once the engines are right again and every answer begun before that has ended."""
        if self._mark is None or self.current is None:
            return
        if not settled:
            self._settled_ms = None
            return
        now_ms = await self._broker.time_ms()
        if self._settled_ms is None:
            # Requests are registered with a little delay: they are looked for at the next look.
            self._settled_ms = now_ms
            return
        oldest_ms = await self._broker.inflight_oldest(now_ms - LONGEST_ANSWER_MS)
        if oldest_ms is None or oldest_ms > self._settled_ms:
            await self._broker.set_weights(WeightsState(current=self.current.version, updating=None))
            self._mark = self._settled_ms = None

    async def _say_versions(self) -> None:
        versions = {url: "" if version is None else str(version) for url, version in self.reported.items()}
        if versions:
            await self._broker.set_status("engines", versions)
