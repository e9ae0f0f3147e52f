"""The training loop of the leading rank: collect, step, publish, save, acknowledge.

Owns the order of things. Torch runs in this thread on all ranks alike (:mod:`ranks`); streams and engines are
spoken to in the background thread. What is done when its turn comes stands in the parts: ``teacher_part``,
``publish_part``, ``save_part``; how they wait in ``waiting``.
"""

from __future__ import annotations

import time
from functools import partial

import msgspec
import structlog
from hintloop_contract.errors import DependencyError

from hintloop_trainer.control_part import ControlPart
from hintloop_trainer.deps import LoopDeps
from hintloop_trainer.errors import BackgroundError, CheckpointError, StopRequestedError, TrainingError
from hintloop_trainer.gate_part import GatePart
from hintloop_trainer.history_part import HistoryPart
from hintloop_trainer.learner import StepResult
from hintloop_trainer.points import Point
from hintloop_trainer.progress import Progress
from hintloop_trainer.publish_part import PublishPart
from hintloop_trainer.report import Metrics
from hintloop_trainer.report_part import ReportPart
from hintloop_trainer.samples import Held, without_message
from hintloop_trainer.save_part import SavePart, continued
from hintloop_trainer.teacher_part import TeacherPart
from hintloop_trainer.waiting import FIRST_RETRY_S, Waiting

COLLECT_WAIT_S = 5.0
#: The same while a checkpoint is being written, which is to be acknowledged soon.
SAVING_WAIT_S = 0.5


class TrainingLoop:
    """Drives one policy's training on the leading rank."""

    def __init__(self, deps: LoopDeps) -> None:
        """Start from the student's own weights, unless :meth:`resume` finds a checkpoint."""
        self._deps = deps
        self._training = deps.config.training
        self._progress = Progress()
        self._log = structlog.get_logger()
        self._waiting = Waiting(deps, self._progress)
        self._teacher = TeacherPart(deps, self._waiting.insist_or_stop)
        self._gate = GatePart(deps, self._progress, self._waiting)
        self._history = HistoryPart(deps, self._progress)
        self._publishing = PublishPart(deps, self._progress, self._waiting, self._gate, self._history)
        self._saving = SavePart(deps, self._progress, self._waiting)
        self._control = ControlPart(deps, self._progress, self._waiting, self._publishing, self._saving, self._gate)
        self._reporting = ReportPart(deps, self._progress)

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one; to be called before any sample is read."""
        self._saving.resume()
        self._reporting.begin()

    def run(self) -> Progress:
        """Train until asked to stop, or for ``training.max_steps`` steps; leaves a checkpoint behind.

        What is held is given back on every way out.

        Raises:
            BackgroundError: work in the background ended; a checkpoint is left behind.
            WeightsError: the weights are no numbers; the last checkpoint stays the newest.
            CheckpointError: the last steps are in no checkpoint; their samples come again.
        """
        try:
            published = self._control.start()
            scores = self._publishing.probe()
            if not published:
                self._publishing.publish(scores, reason="start")
            self._teacher.start(self._progress.step, scores)
            while not self._finished():
                self._obey()
                if self._finished():
                    break
                self._saving.look()
                self._control.note()
                self._waiting.status("collecting")
                held = self._collect()
                if held is not None:
                    self._train(held)
        except StopRequestedError:
            self._log.info("stopping")
        except BackgroundError:
            self._close("failed")
            raise
        except BaseException:
            # In the middle of a step the ranks may not agree any more: nothing that takes them all.
            self._give_back()
            self._waiting.status("failed")
            raise
        self._close("stopped")
        return self._progress

    def _obey(self) -> None:
        """Carry out what operators ask; stand still while training is paused."""
        before = self._progress.step
        self._control.obey()
        self._control.wait_while_paused()
        if self._progress.step != before:
            self._reporting.begin()

    def _finished(self) -> bool:
        self._deps.background.check()
        done = self._progress.step - self._progress.steps_at_start
        limit = self._training.max_steps
        return self._deps.stop.is_set() or (limit is not None and done >= limit)

    def _close(self, phase: str) -> None:
        self._history.close()
        try:
            self._gate.close()
            self._saving.save_rest()
        except CheckpointError as error:
            self._give_back()
            self._waiting.status("failed", detail=str(error))
            raise
        self._give_back()
        self._waiting.status(phase)

    def _give_back(self) -> None:
        try:
            self._deps.background.run(self._deps.source.release(self._progress.collection))
        except DependencyError as error:
            # What is held stays pending and is claimed after `redis.claim_idle_ms`.
            self._log.warning("samples not released", detail=str(error))
        self._progress.collection = []

    def _collect(self) -> list[Held] | None:
        deps = self._deps
        count = deps.config.rollout.rollout_batch_size
        wait_s = SAVING_WAIT_S if self._saving.writing else COLLECT_WAIT_S
        try:
            held = deps.background.run(deps.source.collect(count, self._progress.lineage, wait_s))
        except DependencyError as error:
            self._log.warning("broker away", detail=str(error))
            deps.stop.wait(FIRST_RETRY_S)
            held = None
        deps.ranks.idle()
        return held

    def _train(self, held: list[Held]) -> None:
        """Make the collection's steps."""
        deps, size = self._deps, self._training.train_batch_size
        self._progress.collection = list(held)
        filled = self._teacher.filled(held)
        self._progress.collection = list(filled or [])
        if filled is None:
            return
        held = filled
        self._waiting.insist("counting", lambda: deps.broker.count("batched", len(held)))
        batches = [held[start : start + size] for start in range(0, len(held), size)]
        encoder = msgspec.msgpack.Encoder()
        started = time.perf_counter()
        deps.ranks.call("begin", [[encoder.encode(item.sample) for item in batch] for batch in batches])
        prepared_s = time.perf_counter() - started
        self._steps(batches, prepared_s)

    def _steps(self, batches: list[list[Held]], prepared_s: float) -> None:
        """Every pass over the collection's batches, unless something comes between."""
        left_out: set[int] = set()
        for epoch in range(self._training.num_epochs):
            for index, batch in enumerate(batches):
                if self._finished() or self._interrupted():
                    return
                if index in left_out:
                    continue
                self._waiting.status("training")
                try:
                    self._step(index, batch, prepared_s if epoch == index == 0 else 0.0, first_pass=epoch == 0)
                except TrainingError as error:
                    left_out.add(index)
                    self._leave_out(batch, error)
        self._interrupted()

    def _interrupted(self) -> bool:
        """Whether the collection ends here: the gate's patience has ended, or an operator asks for something."""
        if self._gate.exhausted:
            self._gate.go_back()
            self._reporting.begin()
        elif not self._control.asked():
            return False
        self._put_back()
        return True

    def _put_back(self) -> None:
        """What is left of the collection waits again."""
        rest, self._progress.collection = self._progress.collection, []
        self._deps.background.run(self._deps.source.put_back(rest))

    def _leave_out(self, batch: list[Held], error: TrainingError) -> None:
        """No step can be made with ``batch``, and the weights are as they were: what is at fault fails.

        Training goes on, and the other samples wait again. When none is at fault alone, all are.
        """
        deps, progress = self._deps, self._progress
        # A step of an earlier pass was made with the others.
        untrained = [held for held in batch if held in progress.collection]
        encoder = msgspec.msgpack.Encoder()
        places = deps.ranks.call("blame", [encoder.encode(held.sample) for held in untrained]) if untrained else []
        failing = [untrained[place] for place in places] or untrained
        self._log.error("step left out", detail=str(error), turns=[held.sample.turn_id for held in failing])
        for held in failing:
            fail = partial(deps.source.fail, held, str(error), deps.config.redis.max_attempts)
            self._waiting.insist("failing a sample", fail)
        progress.collection = [held for held in progress.collection if held not in untrained]
        deps.background.run(deps.source.put_back([held for held in untrained if held not in failing]))

    def _step(self, index: int, batch: list[Held], prepared_s: float, *, first_pass: bool) -> None:
        progress, deps = self._progress, self._deps
        staleness = [progress.lineage.behind(item.sample.version_oldest) or 0 for item in batch]
        deps.reached(Point.BEFORE_STEP)
        result: StepResult = deps.ranks.call("step", index)
        deps.reached(Point.AFTER_STEP)
        progress.step += 1
        scores = self._publishing.probe()
        if first_pass:
            self._count(batch)
        seconds = self._publishing.publish(scores)
        more: Metrics = {
            "seconds_prepare": prepared_s,
            **self._teacher.metrics(),
            **self._gate.metrics,
            **{f"seconds_{name}": value for name, value in seconds.items()},
        }
        metrics = self._reporting.step(result, batch, staleness, more)
        self._history.step(result.traces, metrics, first_pass=first_pass)
        self._waiting.status("trained", metrics)

    def _count(self, batch: list[Held]) -> None:
        """A step was made with ``batch`` for the first time."""
        progress = self._progress
        entries = [without_message(held.entry) for held in batch]
        progress.unsaved.extend(entries)
        progress.unreleased.extend(entries)
        progress.history = continued(progress.history, [held.sample.turn_id for held in batch])
        progress.num_trained += len(batch)
        trained = {held.entry.entry_id for held in batch}
        progress.collection = [held for held in progress.collection if held.entry.entry_id not in trained]
        self._waiting.insist("counting", lambda: self._deps.source.trained(batch))
