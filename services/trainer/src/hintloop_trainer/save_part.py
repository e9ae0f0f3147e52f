"""Checkpoints' part of the training loop: when they are written, and what follows from one that is durable."""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog
from hintloop_contract.errors import DependencyError

from hintloop_trainer import checkpoints
from hintloop_trainer.checkpoints import TrainerState
from hintloop_trainer.deps import LoopDeps
from hintloop_trainer.progress import Progress
from hintloop_trainer.samples import Held
from hintloop_trainer.waiting import Waiting


class SavePart:
    """Saves, acknowledges what a checkpoint holds, and resumes."""

    def __init__(self, deps: LoopDeps, progress: Progress, waiting: Waiting) -> None:
        """``progress`` is what is saved and restored."""
        self._deps = deps
        self._progress = progress
        self._waiting = waiting
        self._log = structlog.get_logger()

    def save_if_due(self) -> None:
        """Write a checkpoint when the last one is ``training.save_interval`` steps old."""
        if self._progress.step - self._progress.saved_step >= self._deps.config.training.save_interval:
            self.save()

    def save_rest(self) -> None:
        """Write a checkpoint of what no checkpoint holds yet, if there is anything."""
        if self._progress.step > self._progress.saved_step:
            self.save()

    def save(self) -> None:
        """Write a checkpoint and acknowledge what it holds."""
        progress, deps = self._progress, self._deps
        self._waiting.status("saving")
        started = time.perf_counter()
        path = deps.ranks.call("save", self._state())
        progress.saved_step = progress.step
        self._log.info("checkpoint", path=str(path), seconds=round(time.perf_counter() - started, 2))
        acknowledged: Sequence[Held] = list(progress.unsaved)
        progress.unsaved.clear()
        try:
            deps.background.run(deps.source.finish(acknowledged))
        except DependencyError as error:
            # They stay pending, and are acknowledged by their turn ids when they come again.
            self._log.warning("samples not acknowledged yet", detail=str(error))

    def _state(self) -> TrainerState:
        progress, config = self._progress, self._deps.config
        return TrainerState(
            step=progress.step,
            run=self._deps.run,
            lineage=progress.lineage,
            trained_turn_ids=self._deps.background.run(self._deps.source.unacknowledged()),
            num_trained=progress.num_trained,
            model_path=config.model.student_model_path,
            dtype=config.model.dtype,
            lora=config.lora.described,
        )

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one; to be called before any sample is read."""
        progress, deps = self._progress, self._deps
        found = checkpoints.complete(deps.config.training.checkpoint_dir)
        if not found:
            return
        state = checkpoints.read_state(found[-1])
        checkpoints.check_same_model(state, deps.config, found[-1])
        deps.ranks.call("load", found[-1])
        progress.step = progress.saved_step = progress.steps_at_start = state.step
        progress.num_trained = state.num_trained
        progress.lineage = state.lineage
        deps.source.skip(state.trained_turn_ids)
        self._log.info("resumed", path=str(found[-1]), step=state.step, trained=state.num_trained)
