"""Waiting for what may be away, and saying what the trainer does meanwhile. Works in the training thread."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog
from hintloop_contract.errors import DependencyError

from hintloop_trainer.deps import LoopDeps
from hintloop_trainer.errors import CheckpointError, PublishError, StopRequestedError
from hintloop_trainer.progress import Progress
from hintloop_trainer.report import Metrics

T = TypeVar("T")

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 30.0
#: How often it is looked whether to stop, while something takes long.
LOOK_S = 1.0


class Waiting:
    """Insists on work in the background until it succeeds, and writes the trainer's status."""

    def __init__(self, deps: LoopDeps, progress: Progress) -> None:
        """``progress`` is what the status tells of."""
        self._deps = deps
        self._progress = progress
        self._log = structlog.get_logger()
        self._told = False

    def insist(self, what: str, work: Callable[[], Coroutine[Any, Any, T]], *, patient: bool = True) -> T:
        """Do ``work`` in the background until it succeeds.

        Raises:
            StopRequestedError: asked to end meanwhile; a try is waited for if ``patient``, else cancelled.
            BackgroundError: work in the background ended meanwhile.
        """
        return self._repeated(what, lambda: self._deps.background.run(work()) if patient else self._watched(work()))

    def insist_on_ranks(self, what: str, method: str, *arguments: Any) -> Any:
        """Call ``method`` on all ranks until what it writes can be written; this rank's result.

        Raises:
            StopRequestedError: asked to end meanwhile.
            BackgroundError: work in the background ended meanwhile.
        """
        return self._repeated(what, lambda: self._deps.ranks.call(method, *arguments))

    def _repeated(self, what: str, attempt: Callable[[], T]) -> T:
        wait_s = FIRST_RETRY_S
        while True:
            try:
                return attempt()
            except (CheckpointError, DependencyError, PublishError) as error:
                self._log.error(f"{what} failed, trying again", detail=str(error), wait_s=wait_s)
                self.status(f"{what} failed", detail=str(error))
            self._deps.ranks.idle()
            self._deps.background.check()
            if self._deps.stop.wait(wait_s):
                raise StopRequestedError
            wait_s = min(2 * wait_s, LAST_RETRY_S)

    def insist_or_stop(self, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """:meth:`insist` with work that is cancelled when the process is asked to end."""
        return self.insist(what, work, patient=False)

    def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` in the background, however long it takes; the other ranks hear of us meanwhile."""
        future = self._deps.background.submit(work)
        while not concurrent.futures.wait((future,), LOOK_S).done:
            self._deps.ranks.idle()
            if self._deps.stop.is_set():
                future.cancel()
                raise StopRequestedError
        return future.result()

    def status(self, phase: str, metrics: Metrics | None = None, detail: str = "") -> None:
        """Say what the trainer does; never fails."""
        progress = self._progress
        fields = {
            "phase": phase,
            "detail": detail,
            "step": str(progress.step),
            "version": str(progress.lineage.current or ""),
            "trained": str(progress.num_trained),
            "run": self._deps.run,
            "paused": progress.paused,
            "alarm": progress.alarm,
            "rollback_to": progress.rollback_to,
            "gate_holds": str(progress.holds),
            **self._deps.watch.fields(),
            **{name: "" if value is None else str(value) for name, value in (metrics or {}).items()},
        }
        try:
            # Figures of a step that another run made, perhaps by another configuration, say nothing of this one.
            self._deps.background.run(self._deps.broker.set_status("trainer", fields, afresh=not self._told))
            self._told = True
        except DependencyError as error:
            self._log.warning("status not written", detail=str(error))
