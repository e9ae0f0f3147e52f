"""Publishing's part of the training loop: the probe's scores, a version, the weights' files, the engines."""

from __future__ import annotations

import math
import time
from pathlib import Path

from hintloop_trainer import starts
from hintloop_trainer.deps import LoopDeps
from hintloop_trainer.errors import WeightsError
from hintloop_trainer.gate_part import GatePart
from hintloop_trainer.history_part import HistoryPart
from hintloop_trainer.points import Point
from hintloop_trainer.progress import Progress
from hintloop_trainer.publish.release import Release
from hintloop_trainer.waiting import Waiting


class PublishPart:
    """Releases the weights as they are under new versions."""

    def __init__(
        self, deps: LoopDeps, progress: Progress, waiting: Waiting, gate: GatePart, history: HistoryPart
    ) -> None:
        """``progress`` gets the versions released."""
        self._deps = deps
        self._progress = progress
        self._waiting = waiting
        self._gate = gate
        self._history = history

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

    def publish(self, scores: list[float], *, reason: str = "step") -> dict[str, float]:
        """Export the weights and release them under a new version; seconds by phase.

        After a ``step`` the gate looks at them: such as it holds back are not released, and their files are deleted.
        Those of another ``reason`` (`history.VersionNote.reason`) were released before, and are not judged: they are
        what later ones are compared with.
        """
        judged = reason == "step"
        deps, progress, insist = self._deps, self._progress, self._waiting.insist
        self._waiting.status("publishing")
        root = deps.config.training.checkpoint_dir
        above = max([progress.lineage.current or 0, *starts.read(root).versions])
        version = insist("taking a version", lambda: deps.publisher.take_version(above))
        started = time.perf_counter()
        directory = Path(deps.config.publishing.weights_dir).resolve() / str(version)
        digest: str = self._waiting.insist_on_ranks("exporting weights", "export", directory)
        progress.exported, progress.exported_step = directory, progress.step
        deps.reached(Point.EXPORTED)
        if not judged:
            starts.note(root, digest, version, progress.step, progress.lineage)
        seconds = {"export": time.perf_counter() - started}
        fields = {
            "step": str(progress.step),
            "run": deps.run,
            "parent": str(progress.lineage.current or ""),
            "weights_hash": digest,
            "trained": str(progress.num_trained),
        }
        unsaved = deps.background.run(deps.source.unacknowledged())
        release = Release(version, directory, deps.probe_ids, scores, unsaved)
        admitted = not judged or self._gate.admits(release)
        if judged and self._gate.metrics:
            self._history.gate(version, self._gate.reasons, self._gate.metrics)
        if not admitted:
            held = {**fields, "held": progress.alarm}
            insist("describing a version", lambda: deps.broker.describe_version(version, held))
            self._gate.discard(directory)
            return seconds
        started = time.perf_counter()
        insist("describing a version", lambda: deps.broker.describe_version(version, fields))
        insist("publishing", lambda: deps.publisher.publish(release))
        deps.reached(Point.PUBLISHED)
        self._history.version(version, progress.lineage.current, digest, reason)
        progress.lineage.release(version, progress.step)
        seconds["publish"] = time.perf_counter() - started
        if not judged:
            self._gate.begin(release)
        self._gate.released(version)
        return seconds
