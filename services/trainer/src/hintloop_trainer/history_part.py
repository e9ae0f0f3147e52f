"""History's part of the training loop: steps, tokens, versions and gate decisions, noted for people to look at.

Nothing waits for it and nothing fails by it: notes are sent in the background, one step's at a time. While the ones
before are still under way, as when Redis is away, a step's notes are left out, and that is logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from itertools import accumulate

import structlog
from hintloop_contract.errors import HintloopError
from hintloop_contract.history import GateDecision, Note, StepFigures, Trained, VersionNote
from hintloop_contract.tensors import pack

from hintloop_trainer.deps import LoopDeps
from hintloop_trainer.progress import Progress
from hintloop_trainer.report import Metrics
from hintloop_trainer.traces import TokenTrace

#: Of one step no more than so many tokens are noted singly (8 bytes each); the other turns are noted without.
MAX_TOKENS = 1_000_000
#: How long the last notes are waited for at the end.
LAST_WAIT_S = 3.0


class HistoryPart:
    """Notes what the trainer did. Without `console.history` it does nothing."""

    def __init__(self, deps: LoopDeps, progress: Progress) -> None:
        """``progress`` says which step it is."""
        self._deps = deps
        self._progress = progress
        self._wanted = deps.config.console.history
        self._waiting: list[Note] = []
        self._sending: Future[None] | None = None
        self._log = structlog.get_logger()

    def version(self, version: int, parent: int | None, weights_hash: str, reason: str) -> None:
        """``version`` was released; it is told with the next step, or at once when no step brought it."""
        step = self._progress.step
        note = VersionNote(
            version=version, step=step, parent=parent, run=self._deps.run, weights_hash=weights_hash, reason=reason
        )
        self._waiting.append(note)
        if reason != "step":
            self._send()

    def gate(self, version: int, reasons: Sequence[str], figures: Metrics) -> None:
        """What the gate said of ``version``; no ``reasons``: it was released."""
        outcome = "held" if reasons else "released"
        self._waiting.append(
            GateDecision(
                version=version,
                step=self._progress.step,
                outcome=outcome,
                reasons=tuple(reasons),
                figures=_numbers(figures),
            )
        )

    def step(self, traces: Sequence[TokenTrace], metrics: Metrics, *, first_pass: bool) -> None:
        """A step was made; ``traces`` are of its answers, told at their first pass alone."""
        if not self._wanted:
            self._waiting.clear()
            return
        progress = self._progress
        current = progress.lineage.current
        released = current if current is not None and progress.lineage.step_of(current) == progress.step else None
        if first_pass:
            ends = accumulate(len(trace.old_logprobs) for trace in traces)
            self._waiting += [
                _trained(trace, progress.step, released, whole=end <= MAX_TOKENS)
                for trace, end in zip(traces, ends, strict=True)
            ]
        self._waiting.append(StepFigures(step=progress.step, version=current, figures=_numbers(metrics)))
        self._send()

    def close(self) -> None:
        """Wait a little for what is under way."""
        if self._sending is not None:
            wait((self._sending,), LAST_WAIT_S)

    def _send(self) -> None:
        notes, self._waiting = self._waiting, []
        if not self._wanted:
            return
        if self._sending is not None and not self._sending.done():
            self._log.warning("history left out: what was noted before is not written yet", notes=len(notes))
            return
        self._sending = self._deps.background.submit(self._written(notes))

    async def _written(self, notes: Sequence[Note]) -> None:
        try:
            await self._deps.broker.remember(notes)
        except HintloopError as error:
            self._log.warning("history not written", notes=len(notes), detail=str(error))


def _trained(trace: TokenTrace, step: int, version: int | None, *, whole: bool) -> Trained:
    if not whole:
        return Trained(turn_id=trace.turn_id, step=step, version=version)
    return Trained(
        turn_id=trace.turn_id,
        step=step,
        version=version,
        advantages=None if trace.advantages is None else pack(trace.advantages, "float32"),
        student_logprobs=pack(trace.old_logprobs, "float32"),
    )


def _numbers(metrics: Metrics) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
