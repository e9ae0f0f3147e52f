"""The teacher's part of the training loop: its start, samples that come unscored, and what is reported of it."""

from __future__ import annotations

import time
from functools import partial

from hintloop_trainer import null_hint
from hintloop_trainer.deps import LoopDeps
from hintloop_trainer.filling import Filler, Insist
from hintloop_trainer.report import Metrics
from hintloop_trainer.samples import Held


class TeacherPart:
    """Works on the leading rank, in the training thread."""

    def __init__(self, deps: LoopDeps, insist: Insist) -> None:
        """``insist`` waits for what may be away, and says so."""
        self._deps = deps
        self._insist = insist
        self._filler = Filler(deps.filling, deps.ranks, deps.prm, insist)
        self._seconds = 0.0

    def start(self, step: int, scores: list[float]) -> None:
        """Check what the teacher can do, and run the null-hint control, before anything is trained if so configured.

        ``scores`` are the student's of the probe, at ``step``.

        Raises:
            ConfigError: the teacher cannot score the student's candidates, or the control has to pass and does not.
        """
        deps = self._deps
        self._filler.check()
        if not deps.filling.has_prm:
            return
        mode = deps.config.prm.null_hint_control
        known = None if mode == "off" else null_hint.reference(deps.config, step, deps.probe_ids, scores)
        limits = null_hint.tolerances(deps.config)
        if known is not None and mode == "refuse":
            null_hint.require(self._insist("null-hint control", partial(null_hint.compare, deps.prm, known, limits)))
            known = None
        deps.background.keep("watching the PRM", deps.watch.serve(known, limits, deps.ending))

    def filled(self, held: list[Held]) -> list[Held] | None:
        """``held`` with the teacher's part.

        ``None`` when some cannot be scored: they are dropped, and the others wait for more.
        """
        source = self._deps.source
        if not self._deps.filling.needed:
            return held
        started = time.perf_counter()
        found = self._filler.fill([item.sample for item in held])
        self._seconds += time.perf_counter() - started
        ready = [
            Held(found.ready[item.sample.turn_id], item.entry) for item in held if item.sample.turn_id in found.ready
        ]
        if len(ready) == len(held):
            return ready
        for item in held:
            if wrong := found.unscorable.get(item.sample.turn_id):
                self._insist("dropping a sample", partial(source.refuse, item, wrong.reason, wrong.detail))
        self._deps.background.run(source.put_back(ready))
        return None

    def metrics(self) -> Metrics:
        """Of the step just made."""
        metrics: Metrics = {}
        if self._deps.filling.needed:
            metrics["seconds_teacher"], self._seconds = self._seconds, 0.0
        if self._deps.watch.available is not None:
            metrics["prm_available"] = float(self._deps.watch.available)
        return metrics
