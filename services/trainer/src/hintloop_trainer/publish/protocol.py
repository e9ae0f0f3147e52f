"""The publishing sequence: pause, replace, resume, probe; released only when every engine that answers has it.

The probe comes after resuming because a paused engine answers no one. Until it has passed, the version is
``updating``: answers made meanwhile span two versions and are not trained.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from hintloop_contract.broker import Broker, WeightsState
from hintloop_contract.errors import DependencyError

from hintloop_trainer.errors import EngineAwayError, PublishError
from hintloop_trainer.publish.engines import EngineControl

#: Largest mean difference per token between engine and trainer on the probe, nats.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.05}


@dataclass(frozen=True, slots=True)
class Release:
    """Weights with their version, and what the trainer says of the probe under them."""

    version: int
    directory: Path
    probe_ids: list[int]
    probe_scores: list[float]
    """``[len(probe_ids) - 1]``, nats, at temperature 1."""


async def update_engine(control: EngineControl, release: Release, tolerance: float) -> float:
    """Bring one engine to ``release``; the probe's mean difference, nats.

    The engine is resumed whatever happens.

    Raises:
        EngineAwayError: it does not answer.
        PublishError: a step failed, or the engine scores the probe otherwise than the trainer.
    """
    try:
        await control.pause()
        await control.replace(release.directory, release.version)
    finally:
        await control.resume()
    return await verify(control, release, tolerance)


async def verify(control: EngineControl, release: Release, tolerance: float) -> float:
    """Mean difference per token between the engine's and the trainer's scores of the probe.

    Raises:
        PublishError: it is above ``tolerance``.
    """
    scores = await control.score(release.probe_ids)
    pairs = zip(scores, release.probe_scores, strict=True)
    difference = sum(abs(engine - trainer) for engine, trainer in pairs) / len(scores)
    if not difference <= tolerance:
        raise PublishError(
            control.url,
            "probe",
            f"mean difference {difference:.6f} nats to the trainer's scores, tolerance {tolerance}",
        )
    return difference


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
    ) -> None:
        """``weights_dir`` is mounted at the same path for trainer and engines."""
        self._broker = broker
        self._engines = engines
        self._weights_dir = weights_dir
        self._tolerance = tolerance
        self._keep = keep_versions
        self._changing = asyncio.Lock()
        self._log = structlog.get_logger()
        self.current: Release | None = None
        self.reported: dict[str, int | None] = {}
        """What each engine was seen to serve last."""

    async def publish(self, release: Release) -> None:
        """Bring every engine that answers to ``release`` and make it the current one.

        An engine that is away is left to :meth:`reconcile`. After a failure ``updating`` stays set: no one knows
        what the engines serve until the next attempt succeeds.

        Raises:
            PublishError: an engine answers and did not take the weights.
            DependencyError: no engine answers, or Redis is away.
        """
        async with self._changing:
            before = self.current.version if self.current else None
            await self._broker.set_weights(WeightsState(current=before, updating=release.version))
            away = await self._update_all(release)
            if away and len(away) == len(self._engines):
                raise DependencyError("policy engines", str(away[0]))
            self._switch(release)
            await self._broker.set_weights(WeightsState(current=release.version, updating=None))
            self.current = release
            await self._say_versions()
            self._prune()

    async def _update_all(self, release: Release) -> list[EngineAwayError]:
        away: list[EngineAwayError] = []
        for control in self._engines:
            try:
                difference = await update_engine(control, release, self._tolerance)
            except EngineAwayError as error:
                self._log.warning("engine away, left for later", engine=control.url, detail=str(error))
                self.reported[control.url] = None
                away.append(error)
                continue
            self.reported[control.url] = release.version
            self._log.info(
                "engine updated", engine=control.url, version=release.version, probe_difference=round(difference, 6)
            )
        return away

    def _switch(self, release: Release) -> None:
        """Point ``current`` at the release, in one rename."""
        link, aside = self._weights_dir / "current", self._weights_dir / ".current.partial"
        aside.unlink(missing_ok=True)
        aside.symlink_to(release.directory.name)
        aside.rename(link)

    def _prune(self) -> None:
        """Delete versions that no engine reports and that are not among the newest."""
        versions = sorted(int(path.name) for path in self._weights_dir.iterdir() if path.name.isdigit())
        kept = {*versions[-self._keep :], *self.reported.values()}
        if self.current:
            kept.add(self.current.version)
        for version in versions:
            if version not in kept:
                shutil.rmtree(self._weights_dir / str(version))

    async def reconcile(self) -> None:
        """Bring engines that are not at the current version there. Failures are logged and tried again later."""
        if self.current is None or self._changing.locked():
            return
        async with self._changing:
            for control in self._engines:
                await self._reconcile_one(control, self.current)
            await self._say_versions()

    async def _reconcile_one(self, control: EngineControl, release: Release) -> None:
        try:
            found = await control.version()
            if found != release.version:
                self._log.warning("engine behind", engine=control.url, found=found, current=release.version)
                await update_engine(control, release, self._tolerance)
            self.reported[control.url] = release.version
        except EngineAwayError:
            self.reported[control.url] = None
        except PublishError as error:
            self.reported[control.url] = None
            self._log.error("engine not brought up to date", engine=control.url, detail=str(error))

    async def _say_versions(self) -> None:
        versions = {url: "" if version is None else str(version) for url, version in self.reported.items()}
        if versions:
            await self._broker.set_status("engines", versions)
