"""Checkpoints' part of the training loop: when they are written, and what follows from one that is durable."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog
from hintloop_contract.broker import Entry
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Message

from hintloop_trainer import checkpoints
from hintloop_trainer.checkpoints import TrainerState
from hintloop_trainer.deps import LoopDeps
from hintloop_trainer.errors import CheckpointError
from hintloop_trainer.points import Point
from hintloop_trainer.progress import Progress
from hintloop_trainer.waiting import Waiting

#: After a checkpoint that could not be written: how long until the next try.
RETRY_S = 30.0
#: How often it is looked whether a checkpoint is durable, while that is waited for.
POLL_S = 0.05


def continued(history: str, turn_ids: Iterable[str]) -> str:
    """The history of weights in which ``turn_ids`` were trained, in this order, after ``history``."""
    for turn_id in turn_ids:
        history = hashlib.sha256(f"{history} {turn_id}".encode()).hexdigest()
    return history


@dataclass(frozen=True, slots=True)
class _Begun:
    """A checkpoint that is being written, and what is acknowledged once it is durable."""

    step: int
    entries: list[Entry[Message]]
    started: float


class SavePart:
    """Saves, acknowledges what a checkpoint holds, and resumes."""

    def __init__(self, deps: LoopDeps, progress: Progress, waiting: Waiting) -> None:
        """``progress`` is what is saved and restored."""
        self._deps = deps
        self._progress = progress
        self._waiting = waiting
        self._begun: _Begun | None = None
        self._not_before = 0.0
        self._log = structlog.get_logger()

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._begun is not None

    def look(self) -> None:
        """Acknowledge what has become durable; begin a checkpoint when the last one is `save_interval` steps old.

        One that cannot be written is tried again after :data:`RETRY_S`; training goes on, and its samples stay
        pending. Past the bound of `samples` no more come, so no more than that is at stake.
        """
        training, progress = self._deps.config.training, self._progress
        newest = self._begun.step if self._begun else progress.saved_step
        due = progress.step - newest >= training.save_interval and time.monotonic() >= self._not_before
        # What the gate holds back may yet be given up, with what was trained into it.
        due = due and not progress.holds
        try:
            if due:
                # What is not acknowledged is at most what two intervals hold.
                self._wait()
                self._begin()
            if due and not training.async_save:
                self._wait()
            else:
                self._finish()
        except CheckpointError as error:
            self._failed(error)

    def settle(self) -> None:
        """Wait for the checkpoint that is being written, if one is."""
        try:
            self._wait()
        except CheckpointError as error:
            self._failed(error)

    def save_rest(self) -> None:
        """Have all that was trained in a durable checkpoint.

        Raises:
            CheckpointError: it cannot be written; the steps since the last one are lost, the samples come again.
        """
        self.settle()
        if self._progress.step > self._progress.saved_step:
            self._begin()
            self._wait()

    def _failed(self, error: CheckpointError) -> None:
        self._not_before = time.monotonic() + RETRY_S
        self._log.error("checkpoint failed, trying again; training goes on", detail=str(error), wait_s=RETRY_S)
        self._waiting.status("saving failed", detail=str(error))

    def _begin(self) -> None:
        progress = self._progress
        self._waiting.status("saving")
        started = time.perf_counter()
        exported = progress.exported if progress.exported_step == progress.step else None
        if exported is not None and not exported.is_dir():
            exported = None
        self._begun = _Begun(progress.step, list(progress.unsaved), started)
        progress.unsaved.clear()
        try:
            self._deps.ranks.call("begin_save", self._state(), exported)
        except CheckpointError:
            self._take_back()
            raise
        self._log.info("checkpoint begun", step=progress.step, seconds=round(time.perf_counter() - started, 2))

    def _take_back(self) -> None:
        if self._begun is not None:
            self._progress.unsaved[:0] = self._begun.entries
            self._begun = None

    def _finish(self) -> bool:
        """Whether no checkpoint is being written any more."""
        if self._begun is None:
            return True
        try:
            path: Path | None = self._deps.ranks.call("finish_save")
        except CheckpointError:
            self._take_back()
            raise
        if path is None:
            return False
        begun, self._begun = self._begun, None
        self._progress.saved_step = begun.step
        self._log.info("checkpoint", path=str(path), seconds=round(time.perf_counter() - begun.started, 2))
        self._acknowledge(begun.entries)
        return True

    def _wait(self) -> None:
        while not self._finish():
            # Asked to end, the trainer still waits: what is being written holds what would be trained again.
            time.sleep(POLL_S)

    def _acknowledge(self, entries: list[Entry[Message]]) -> None:
        deps = self._deps
        deps.reached(Point.BEFORE_ACKNOWLEDGE)
        try:
            deps.background.run(deps.source.finish(entries))
        except DependencyError as error:
            # They stay pending, and are acknowledged by their turn ids when they come again.
            self._log.warning("samples not acknowledged yet", detail=str(error))
        deps.reached(Point.AFTER_ACKNOWLEDGE)

    def _state(self) -> TrainerState:
        progress, config = self._progress, self._deps.config
        return TrainerState(
            step=progress.step,
            run=self._deps.run,
            lineage=progress.lineage,
            trained_turn_ids=self._deps.background.run(self._deps.source.in_weights()),
            num_trained=progress.num_trained,
            model_path=config.model.student_model_path,
            dtype=config.model.dtype,
            lora=config.lora.described,
            history=progress.history,
            advantages=progress.advantages,
        )

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one; to be called before any sample is read."""
        root = self._deps.config.training.checkpoint_dir
        checkpoints.remove_leftovers(root)
        found = checkpoints.complete(root)
        if found:
            self.resume_from(found[-1])

    def resume_from(self, directory: Path) -> None:
        """Put everything where the checkpoint left it.

        Raises:
            ConfigError: it is of another model.
            CheckpointError: it cannot be read.
        """
        progress, deps = self._progress, self._deps
        state = checkpoints.read_state(directory)
        checkpoints.check_same_model(state, deps.config, directory)
        deps.ranks.call("load", directory)
        progress.step = progress.saved_step = progress.steps_at_start = state.step
        progress.num_trained = state.num_trained
        progress.lineage = state.lineage
        progress.history = state.history
        progress.advantages = state.advantages
        deps.source.skip(state.trained_turn_ids)
        self._log.info("resumed", path=str(directory), step=state.step, trained=state.num_trained)
