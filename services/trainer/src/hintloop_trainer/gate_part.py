"""The release gate's part of the training loop: what is released, what is held back, and the way back.

Only weights that passed are released or saved. After ``gate.patience`` releases held back in a row the learner goes
back to the last released version; what was trained since drops as `gate_rejected`.
"""

from __future__ import annotations

import copy
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
from hintloop_contract.broker import Entry
from hintloop_contract.errors import DependencyError

from hintloop_trainer.deps import LoopDeps
from hintloop_trainer.gate.gate import Gate
from hintloop_trainer.gate.measures import Measured
from hintloop_trainer.points import Point
from hintloop_trainer.progress import Progress
from hintloop_trainer.publish.release import CANDIDATE, Release
from hintloop_trainer.report import Metrics
from hintloop_trainer.tally import Moments
from hintloop_trainer.waiting import Waiting


@dataclass(slots=True)
class _Mark:
    """How far training was at the last release."""

    step: int
    num_trained: int
    history: str
    advantages: Moments


class GatePart:
    """Looks at candidates. Without a gate everything passes and nothing is kept."""

    def __init__(self, deps: LoopDeps, progress: Progress, waiting: Waiting) -> None:
        """``progress`` gets the holds and the alarm."""
        self._deps = deps
        self._gate: Gate | None = deps.gate
        self._progress = progress
        self._waiting = waiting
        self._mark: _Mark | None = None
        self._passed_step = -1
        self._measured: Measured | None = None
        self._log = structlog.get_logger()
        self.metrics: Metrics = {}
        """Of the last look; empty without a gate."""
        self.reasons: tuple[str, ...] = ()
        """Why the last candidate was held back; empty when it was not."""

    @property
    def exhausted(self) -> bool:
        """Whether patience is at its end."""
        return self._gate is not None and self._progress.holds >= self._deps.config.gate.patience

    def admits(self, candidate: Release) -> bool:
        """Whether ``candidate`` may be released."""
        if self._gate is None:
            return True
        gate, progress = self._gate, self._progress
        self._measured = self._look(gate, candidate)
        failing = gate.failings(self._measured)
        if failing and not progress.holds and self._mark is not None:
            # Of a step's advantages it is told after its release; by now those of the released step are in.
            self._mark.advantages = copy.deepcopy(progress.advantages)
        self.reasons = tuple(str(reason) for reason in failing)
        progress.holds = progress.holds + 1 if failing else 0
        self.metrics["gate_held"], self.metrics["gate_holds"] = int(bool(failing)), progress.holds
        if not failing:
            progress.alarm = ""
            self._passed_step = progress.step
            return True
        progress.alarm = f"step {progress.step} is held back: {'; '.join(self.reasons)}"
        self._log.error(
            "release held back",
            step=progress.step,
            holds=progress.holds,
            patience=self._deps.config.gate.patience,
            reasons=list(self.reasons),
        )
        self._waiting.status("held back", self.metrics)
        return False

    def _look(self, gate: Gate, candidate: Release) -> Measured:
        """Measure a candidate; where versions are adapters, their weights merged."""
        self._waiting.status("gate")
        started = time.perf_counter()
        whole = candidate
        if self._deps.config.lora.as_adapter:
            directory = candidate.directory.with_name(CANDIDATE)
            shutil.rmtree(directory, ignore_errors=True)
            self._waiting.insist_on_ranks("exporting a candidate", "export_whole", directory)
            whole = replace(candidate, directory=directory)
        try:
            measured = self._waiting.insist_or_stop("the gate's look", lambda: gate.measure(whole))
        finally:
            if whole is not candidate:
                shutil.rmtree(whole.directory, ignore_errors=True)
        self.metrics = {f"gate_{name}": value for name, value in measured.means().items()}
        self.metrics["seconds_gate"] = time.perf_counter() - started
        return measured

    def discard(self, directory: Path) -> None:
        """Delete the files of weights that were held back, so that no engine is given them by anyone."""
        shutil.rmtree(directory, ignore_errors=True)
        self._progress.exported, self._progress.exported_step = None, -1

    def begin(self, release: Release) -> None:
        """``release`` serves unjudged (the first of a run, or gone back to): measure it for those to come.

        At step 0 these weights are the student's first ones.
        """
        if self._gate is None:
            return
        gate = self._gate
        self._measured = self._look(gate, release)
        if self._progress.step == 0:
            gate.base_is(self._measured)
        else:
            self._waiting.insist_or_stop("the gate's look at the first weights", gate.measure_base)
        self._progress.holds, self._progress.alarm = 0, ""
        self.metrics = {}

    def released(self, version: int) -> None:
        """``version`` serves: what it was measured as, and the learner as it is, are kept."""
        progress = self._progress
        progress.unreleased.clear()
        # Steps are counted anew after a way back: one that passed before says nothing of the next of its number.
        self._passed_step = -1
        if self._gate is None or self._measured is None:
            return
        self._gate.released(version, self._measured)
        self._mark = _Mark(progress.step, progress.num_trained, progress.history, copy.deepcopy(progress.advantages))
        started = time.perf_counter()
        self._deps.ranks.call("keep_release")
        if self.metrics:
            self.metrics["seconds_keep"] = time.perf_counter() - started

    def go_back(self) -> None:
        """Restore the last released version; what was trained since is dropped as `gate_rejected`."""
        progress, deps = self._progress, self._deps
        given_up, alarm, holds = progress.step, progress.alarm, progress.holds
        rejected = self._restore()
        deps.reached(Point.RESTORED)
        detail = f"{holds} releases were held back; {alarm}"
        self._waiting.insist("rejecting samples", lambda: deps.source.reject(rejected, detail))
        progress.alarm = f"back at step {progress.step} from step {given_up}: {alarm}"
        self._log.error(
            "back at the last released version",
            step=progress.step,
            given_up=given_up,
            version=progress.lineage.current,
            rejected=len(rejected),
        )
        self._waiting.status("restored", {"gate_rejected": len(rejected)})

    def _restore(self) -> list[Entry[Any]]:
        progress, mark = self._progress, self._mark
        assert mark is not None, "a version is released before any step"
        self._deps.ranks.call("back_to_release")
        rejected = list(progress.unreleased)
        gone = {entry.entry_id for entry in rejected}
        progress.unreleased.clear()
        progress.unsaved[:] = [entry for entry in progress.unsaved if entry.entry_id not in gone]
        progress.step, progress.num_trained, progress.history = mark.step, mark.num_trained, mark.history
        progress.advantages = copy.deepcopy(mark.advantages)
        progress.exported, progress.exported_step = None, -1
        progress.holds = 0
        return rejected

    def close(self) -> None:
        """At the end of a run: weights that did not pass are not saved, and what is in them alone comes again."""
        progress, deps = self._progress, self._deps
        if self._mark is None or progress.step <= max(self._mark.step, self._passed_step):
            return
        given_up = progress.step
        entries = self._restore()
        self._log.warning("steps that did not pass the gate are given up", given_up=given_up, step=progress.step)
        try:
            deps.background.run(deps.source.untrain(entries))
        except DependencyError as error:
            # They stay pending and are claimed after `redis.claim_idle_ms`.
            self._log.warning("samples not released", detail=str(error))
