"""Publishing's part of the training loop: the probe's scores, a version, the weights' files, the engines."""

from __future__ import annotations

import math
import time
from pathlib import Path

from hintloop_trainer.deps import LoopDeps
from hintloop_trainer.errors import WeightsError
from hintloop_trainer.points import Point
from hintloop_trainer.progress import Progress
from hintloop_trainer.publish.release import Release
from hintloop_trainer.waiting import Waiting


class PublishPart:
    """Releases the weights as they are under new versions."""

    def __init__(self, deps: LoopDeps, progress: Progress, waiting: Waiting) -> None:
        """``progress`` gets the versions released."""
        self._deps = deps
        self._progress = progress
        self._waiting = waiting

    def probe(self) -> list[float]:
        """The probe's scores under the weights as they are.

        Raises:
            WeightsError: one is no number; these weights must not be saved or released.
        """
        scores: list[float] = self._deps.ranks.call("score", self._deps.probe_ids)
        if not all(map(math.isfinite, scores)):
            raise WeightsError(
                f"the weights of step {self._progress.step} score the probe with values that are no numbers; they are "
                f"neither saved nor released. A restart goes on from the last checkpoint in "
                f"{self._deps.config.training.checkpoint_dir}; lower training.learning_rate if it comes to this again"
            )
        return scores

    def publish(self, scores: list[float]) -> dict[str, float]:
        """Export the weights and release them under a new version; seconds by phase."""
        deps, progress, insist = self._deps, self._progress, self._waiting.insist
        self._waiting.status("publishing")
        above = progress.lineage.current or 0
        version = insist("taking a version", lambda: deps.publisher.take_version(above))
        started = time.perf_counter()
        directory = Path(deps.config.publishing.weights_dir).resolve() / str(version)
        digest: str = deps.ranks.call("export", directory)
        progress.exported, progress.exported_step = directory, progress.step
        deps.reached(Point.EXPORTED)
        exported = time.perf_counter()
        fields = {
            "step": str(progress.step),
            "run": deps.run,
            "parent": str(progress.lineage.current or ""),
            "weights_hash": digest,
        }
        insist("describing a version", lambda: deps.broker.describe_version(version, fields))
        release = Release(version, directory, deps.probe_ids, scores)
        insist("publishing", lambda: deps.publisher.publish(release))
        deps.reached(Point.PUBLISHED)
        progress.lineage.release(version, progress.step)
        return {"export": exported - started, "publish": time.perf_counter() - exported}
