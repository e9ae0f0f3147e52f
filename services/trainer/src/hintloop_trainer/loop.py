"""The training loop of the leading rank: collect, step, publish, save, acknowledge.

Owns the order of things. Torch runs in this thread on all ranks alike (:mod:`ranks`); streams and engines are
spoken to in the background thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError

from hintloop_trainer import checkpoints
from hintloop_trainer.background import Background
from hintloop_trainer.checkpoints import TrainerState
from hintloop_trainer.errors import BackgroundError, PublishError, TrainingError, WeightsError
from hintloop_trainer.filling import Filling
from hintloop_trainer.learner import StepResult
from hintloop_trainer.lineage import Lineage
from hintloop_trainer.prm_client import PrmClient
from hintloop_trainer.prm_watch import PrmWatch
from hintloop_trainer.publish.protocol import Publisher
from hintloop_trainer.publish.release import Release
from hintloop_trainer.ranks import Ranks
from hintloop_trainer.report import Metrics, MetricsFile, shown, step_metrics
from hintloop_trainer.samples import Held, SampleSource
from hintloop_trainer.tally import Moments
from hintloop_trainer.teacher_part import TeacherPart
from hintloop_trainer.traces import TraceFile

T = TypeVar("T")

COLLECT_WAIT_S = 5.0
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 30.0
#: How often it is looked whether to stop, while something takes long.
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class LoopDeps:
    """What the loop works with."""

    config: Config
    ranks: Ranks
    background: Background
    broker: Broker
    source: SampleSource
    publisher: Publisher
    probe_ids: list[int]
    metrics_file: MetricsFile
    trace_file: TraceFile
    filling: Filling
    prm: PrmClient
    watch: PrmWatch
    run: str
    """Id of this run of the trainer."""
    stop: threading.Event
    ending: asyncio.Event
    """Tells the background's lasting work to end."""


@dataclass(slots=True)
class Progress:
    """How far training is."""

    step: int = 0
    num_trained: int = 0
    lineage: Lineage = field(default_factory=Lineage)
    collection: list[Held] = field(default_factory=list)
    """Samples of the collection that is being trained, as far as no step was made with them yet."""
    unsaved: list[Held] = field(default_factory=list)
    """Trained since the last checkpoint, still pending in the stream."""
    saved_step: int = 0
    advantages: Moments = field(default_factory=Moments)


class StopRequestedError(Exception):
    """The process was asked to end while it waited for something."""


class TrainingLoop:
    """Drives one policy's training on the leading rank."""

    def __init__(self, deps: LoopDeps) -> None:
        """Start from the student's own weights, unless :meth:`resume` finds a checkpoint."""
        self._deps = deps
        self._training = deps.config.training
        self._progress = Progress()
        self._log = structlog.get_logger()
        self._steps_at_start = 0
        self._teacher = TeacherPart(deps, partial(self._insist, patient=False))

    def run(self) -> Progress:
        """Train until asked to stop, or for ``training.max_steps`` steps; leaves a checkpoint behind.

        What is held is given back on every way out.

        Raises:
            BackgroundError: work in the background ended; a checkpoint is left behind.
            WeightsError: the weights are no numbers; the last checkpoint stays the newest.
        """
        try:
            scores = self._probe()
            self._publish(scores)
            self._teacher.start(self._progress.step, scores)
            while not self._finished():
                self._status("collecting")
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
            self._status("failed")
            raise
        self._close("stopped")
        return self._progress

    def _finished(self) -> bool:
        self._deps.background.check()
        done = self._progress.step - self._steps_at_start
        limit = self._training.max_steps
        return self._deps.stop.is_set() or (limit is not None and done >= limit)

    def _close(self, phase: str) -> None:
        self._save_if(self._progress.step > self._progress.saved_step)
        self._give_back()
        self._status(phase)

    def _give_back(self) -> None:
        try:
            self._deps.background.run(self._deps.source.release(self._progress.collection))
        except DependencyError as error:
            # What is held stays pending and is claimed after `redis.claim_idle_ms`.
            self._log.warning("samples not released", detail=str(error))
        self._progress.collection = []

    # Waiting for what may be away

    def _insist(self, what: str, work: Callable[[], Coroutine[Any, Any, T]], *, patient: bool = True) -> T:
        """Do ``work`` in the background until it succeeds.

        Raises:
            StopRequestedError: asked to end meanwhile; a try is waited for if ``patient``, else cancelled.
            BackgroundError: work in the background ended meanwhile.
        """
        wait_s = FIRST_RETRY_S
        while True:
            try:
                return self._deps.background.run(work()) if patient else self._watched(work())
            except (DependencyError, PublishError) as error:
                self._log.error(f"{what} failed, trying again", detail=str(error), wait_s=wait_s)
                self._status(f"{what} failed", detail=str(error))
            self._deps.ranks.idle()
            self._deps.background.check()
            if self._deps.stop.wait(wait_s):
                raise StopRequestedError
            wait_s = min(2 * wait_s, LAST_RETRY_S)

    def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` in the background, however long it takes; the other ranks hear of us meanwhile."""
        future = self._deps.background.submit(work)
        while not concurrent.futures.wait((future,), LOOK_S).done:
            self._deps.ranks.idle()
            if self._deps.stop.is_set():
                future.cancel()
                raise StopRequestedError
        return future.result()

    def _status(self, phase: str, metrics: Metrics | None = None, detail: str = "") -> None:
        """Say what the trainer does; never fails."""
        progress = self._progress
        fields = {
            "phase": phase,
            "detail": detail,
            "step": str(progress.step),
            "version": str(progress.lineage.current or ""),
            "trained": str(progress.num_trained),
            "run": self._deps.run,
            **self._deps.watch.fields(),
            **{name: "" if value is None else str(value) for name, value in (metrics or {}).items()},
        }
        try:
            self._deps.background.run(self._deps.broker.set_status("trainer", fields))
        except DependencyError as error:
            self._log.warning("status not written", detail=str(error))

    # Collecting

    def _collect(self) -> list[Held] | None:
        deps = self._deps
        count = deps.config.rollout.rollout_batch_size
        try:
            held = deps.background.run(deps.source.collect(count, self._progress.lineage, COLLECT_WAIT_S))
        except DependencyError as error:
            self._log.warning("broker away", detail=str(error))
            deps.stop.wait(FIRST_RETRY_S)
            held = None
        deps.ranks.idle()
        return held

    # Training

    def _train(self, held: list[Held]) -> None:
        deps, size = self._deps, self._training.train_batch_size
        self._progress.collection = list(held)
        filled = self._teacher.filled(held)
        self._progress.collection = list(filled or [])
        if filled is None:
            return
        held = filled
        self._insist("counting", lambda: deps.broker.count("batched", len(held)))
        batches = [held[start : start + size] for start in range(0, len(held), size)]
        encoder = msgspec.msgpack.Encoder()
        started = time.perf_counter()
        deps.ranks.call("begin", [[encoder.encode(item.sample) for item in batch] for batch in batches])
        prepared_s = time.perf_counter() - started
        left_out: set[int] = set()
        for epoch in range(self._training.num_epochs):
            for index, batch in enumerate(batches):
                if self._finished():
                    break
                if index in left_out:
                    continue
                self._status("training")
                try:
                    self._step(index, batch, prepared_s if epoch == index == 0 else 0.0, first_pass=epoch == 0)
                except TrainingError as error:
                    left_out.add(index)
                    self._leave_out(batch, error)
        due = self._progress.step - self._progress.saved_step >= self._training.save_interval
        self._save_if(due)

    def _leave_out(self, batch: list[Held], error: TrainingError) -> None:
        """No step can be made with ``batch``, and the weights are as they were: its samples fail, training goes on."""
        self._log.error("step left out", detail=str(error), turns=[held.sample.turn_id for held in batch])
        attempts = self._deps.config.redis.max_attempts
        for held in batch:
            if held not in self._progress.collection:
                # A step of an earlier pass was made with it.
                continue
            self._insist("failing a sample", partial(self._deps.source.fail, held, str(error), attempts))
            self._progress.collection.remove(held)

    def _step(self, index: int, batch: list[Held], prepared_s: float, *, first_pass: bool) -> None:
        progress, deps = self._progress, self._deps
        staleness = [progress.lineage.behind(item.sample.version_oldest) or 0 for item in batch]
        result: StepResult = deps.ranks.call("step", index)
        progress.step += 1
        progress.advantages.add(result.tally.of("advantage"))
        scores = self._probe()
        if first_pass:
            progress.unsaved.extend(batch)
            progress.num_trained += len(batch)
            trained = {held.entry.entry_id for held in batch}
            progress.collection = [held for held in progress.collection if held.entry.entry_id not in trained]
            self._insist("counting", lambda: deps.source.trained(batch))
        seconds = self._publish(scores)
        metrics: Metrics = {
            "step": progress.step,
            "version": progress.lineage.current,
            **step_metrics(result, batch, staleness, progress.advantages),
            "seconds_prepare": prepared_s,
            **self._teacher.metrics(),
            **{f"seconds_{name}": value for name, value in seconds.items()},
        }
        deps.metrics_file.write(metrics)
        deps.trace_file.write(progress.step, result.traces, {held.sample.turn_id: held for held in batch})
        self._log.info("step", **shown(metrics))
        self._status("trained", metrics)

    # Publishing

    def _probe(self) -> list[float]:
        """The probe's scores under the weights as they are.

        Raises:
            WeightsError: one is no number; these weights must not be saved or released.
        """
        scores: list[float] = self._deps.ranks.call("score", self._deps.probe_ids)
        if not all(map(math.isfinite, scores)):
            raise WeightsError(
                f"the weights of step {self._progress.step} score the probe with values that are no numbers; they are "
                f"neither saved nor released. A restart goes on from the last checkpoint in "
                f"{self._training.checkpoint_dir}; lower training.learning_rate if it comes to this again"
            )
        return scores

    def _publish(self, scores: list[float]) -> dict[str, float]:
        """Export the weights and release them under a new version; seconds by phase."""
        deps, progress = self._deps, self._progress
        self._status("publishing")
        above = progress.lineage.current or 0
        version = self._insist("taking a version", lambda: deps.publisher.take_version(above))
        started = time.perf_counter()
        directory = Path(deps.config.publishing.weights_dir).resolve() / str(version)
        digest: str = deps.ranks.call("export", directory)
        exported = time.perf_counter()
        fields = {
            "step": str(progress.step),
            "run": deps.run,
            "parent": str(progress.lineage.current or ""),
            "weights_hash": digest,
        }
        self._insist("describing a version", lambda: deps.broker.describe_version(version, fields))
        release = Release(version, directory, deps.probe_ids, scores)
        self._insist("publishing", lambda: deps.publisher.publish(release))
        progress.lineage.release(version, progress.step)
        return {"export": exported - started, "publish": time.perf_counter() - exported}

    # Checkpoints

    def _save_if(self, due: bool) -> None:
        """Write a checkpoint and acknowledge what it holds."""
        progress, deps = self._progress, self._deps
        if not due:
            return
        self._status("saving")
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
        )

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one; to be called before any sample is read."""
        found = checkpoints.complete(self._training.checkpoint_dir)
        if not found:
            return
        state = checkpoints.read_state(found[-1])
        checkpoints.check_same_model(state, self._deps.config, found[-1])
        self._deps.ranks.call("load", found[-1])
        self._progress = Progress(
            step=state.step, num_trained=state.num_trained, lineage=state.lineage, saved_step=state.step
        )
        self._steps_at_start = state.step
        self._deps.source.skip(state.trained_turn_ids)
        self._log.info("resumed", path=str(found[-1]), step=state.step, trained=state.num_trained)
