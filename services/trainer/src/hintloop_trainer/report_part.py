"""Reporting's part of the training loop: every step's figures, in all places, and its per-token differences."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from hintloop_trainer.deps import LoopDeps
from hintloop_trainer.learner import StepResult
from hintloop_trainer.progress import Progress
from hintloop_trainer.report import Metrics, shown, step_metrics
from hintloop_trainer.samples import Held
from hintloop_trainer.traces import TRACED_STEPS


class ReportPart:
    """Works on the leading rank, in the training thread."""

    def __init__(self, deps: LoopDeps, progress: Progress) -> None:
        """``progress`` says which step it is."""
        self._deps = deps
        self._progress = progress
        self._log = structlog.get_logger()

    def begin(self) -> None:
        """Training goes on from the step that it is at: at the start, and after any return to older weights."""
        self._deps.sinks.begin(self._progress.step)
        self._deps.trace_file.begin(self._progress.step)
        self._trace(self._progress.step < TRACED_STEPS)

    def step(self, result: StepResult, batch: Sequence[Held], staleness: Sequence[int], more: Metrics) -> Metrics:
        """Tell of the step just made; ``more`` is what others have to say of it. The figures."""
        progress, deps = self._progress, self._deps
        progress.advantages.add(result.tally.of("advantage"))
        metrics: Metrics = {
            "step": progress.step,
            "version": progress.lineage.current,
            **step_metrics(result, batch, staleness, progress.advantages),
            **{f"dropped_{reason}": count for reason, count in sorted(deps.source.dropped.items())},
            **more,
        }
        deps.sinks.write(metrics)
        if deps.config.opd.log_teacher_logprobs:
            deps.trace_file.write(progress.step, result.traces, {held.sample.turn_id: held for held in batch})
        if progress.step == TRACED_STEPS:
            self._trace(False)
        self._log.info("step", **shown(metrics))
        return metrics

    def _trace(self, wanted: bool) -> None:
        config = self._deps.config
        # The history takes them of every step.
        if config.opd.log_teacher_logprobs and not config.console.history:
            self._deps.ranks.call("trace", wanted)
