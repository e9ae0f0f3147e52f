"""Operators' part of the training loop: going back to an earlier version, the pause, and going on.

A request is looked for between steps. It stays in Redis until it is carried out, so that a trainer that dies over it
does it again; every step of a rollback can be done twice. The pause is in Redis, too, and outlives the trainer.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from hintloop_contract.control import Command, ControlOutcome, ControlRequest, ControlState, Pause
from hintloop_contract.errors import ConfigError, DependencyError

from hintloop_trainer import checkpoints
from hintloop_trainer.checkpoints import TrainerState
from hintloop_trainer.deps import LoopDeps
from hintloop_trainer.errors import CheckpointError, RequestRefusedError, StopRequestedError
from hintloop_trainer.gate_part import GatePart
from hintloop_trainer.lineage import MEMORY, Lineage, Released
from hintloop_trainer.points import Point
from hintloop_trainer.progress import Progress
from hintloop_trainer.publish.release import NOTE, is_like, read_note, versions_on_disk
from hintloop_trainer.publish_part import PublishPart
from hintloop_trainer.save_part import SavePart
from hintloop_trainer.waiting import Waiting

#: Times that a trainer may end over a request before it is refused; the next restart would go the same way.
ATTEMPTS = 3
#: How often a paused trainer looks for requests.
PAUSE_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where a version's state is found."""

    version: int
    step: int
    lineage: Lineage
    checkpoint: Path | None
    """With the optimizer; ``None``: the weights alone are left, in the weights directory."""
    here: bool = False
    """The learner is in this very state."""


class ControlPart:
    """Carries out what operators ask."""

    def __init__(
        self,
        deps: LoopDeps,
        progress: Progress,
        waiting: Waiting,
        publishing: PublishPart,
        saving: SavePart,
        gate: GatePart,
    ) -> None:
        """``progress`` is what a rollback sets back."""
        self._deps = deps
        self._progress = progress
        self._waiting = waiting
        self._publishing = publishing
        self._saving = saving
        self._gate = gate
        self._log = structlog.get_logger()

    def asked(self) -> bool:
        """Whether a request waits; false while Redis is away."""
        return self._next() is not None

    def _next(self) -> tuple[str, ControlRequest] | None:
        try:
            return self._deps.background.run(self._deps.broker.next_control())
        except DependencyError as error:
            self._log.warning("broker away", detail=str(error))
            return None

    def start(self) -> bool:
        """At the start, before anything is published: the pause that stands, and requests. Whether one published."""
        pause = self._waiting.insist("asking whether training is paused", self._deps.broker.paused)
        self._progress.paused = "" if pause is None else pause.reason
        return self.obey()

    def obey(self) -> bool:
        """Carry out every request that waits; whether weights were published by one."""
        published = False
        while (found := self._next()) is not None:
            request_id, request = found
            begun = self._waiting.insist("accepting a request", partial(self._accept, request_id))
            if begun is None:
                continue
            self._log.info("request", id=request_id, command=request.command, version=request.version, attempt=begun)
            try:
                if begun > ATTEMPTS:
                    raise RequestRefusedError(f"the trainer ended over it {ATTEMPTS} times; its log says why")
                outcome = self._carry_out(request)
            except StopRequestedError:
                self._uncount(request_id, begun)
                raise
            except RequestRefusedError as error:
                self._log.warning("request refused", id=request_id, detail=str(error))
                outcome = ControlOutcome(state=ControlState.REFUSED, detail=str(error))
            published = published or outcome.version is not None
            self._settle(request_id, request, outcome)
        return published

    async def _accept(self, request_id: str) -> int | None:
        """Begin with a request: how many times that was done, this one included; ``None`` when it was withdrawn."""
        broker = self._deps.broker
        before = await broker.control_outcome(request_id)
        number = 1 + (0 if before is None else int(before.detail or 0))
        return number if await broker.accept_control(request_id, str(number)) else None

    def _uncount(self, request_id: str, begun: int) -> None:
        """Asked to end, as while engines are away: that is nothing that the request does to the trainer."""
        with contextlib.suppress(DependencyError):
            self._deps.background.run(self._deps.broker.accept_control(request_id, str(begun - 1)))

    def _settle(self, request_id: str, request: ControlRequest, outcome: ControlOutcome) -> None:
        deps, progress = self._deps, self._progress
        if outcome.state == ControlState.DONE and request.command != Command.DRILL:
            rolled_back = request.command == Command.ROLLBACK
            progress.paused = f"rolled back to version {request.version}" if rolled_back else ""

        async def settle() -> None:
            before = await deps.broker.paused()
            pause = None
            if progress.paused:
                same = before is not None and before.reason == progress.paused
                since_ms = before.since_ms if before is not None and same else await deps.broker.time_ms()
                pause = Pause(reason=progress.paused, since_ms=since_ms)
            await deps.broker.settle_control(request_id, outcome, pause=pause)

        self._waiting.insist("settling a request", settle)
        self._waiting.status("paused" if progress.paused else "resumed")

    def _carry_out(self, request: ControlRequest) -> ControlOutcome:
        if request.command == Command.RESUME:
            if not self._progress.paused:
                raise RequestRefusedError("training is not paused")
            return ControlOutcome(state=ControlState.DONE, detail=f"training goes on; it was {self._progress.paused}")
        if request.command == Command.ROLLBACK and request.version is not None:
            return self._roll_back(request.version)
        if request.command == Command.DRILL:
            return self._drill()
        raise RequestRefusedError(f"this trainer knows no command {request.command!r}")

    def wait_while_paused(self) -> None:
        """Look for requests until training may go on, or the process is to end."""
        while self._progress.paused and not self._deps.stop.is_set():
            self._deps.background.check()
            self._saving.look()
            self.note()
            self._waiting.status("paused")
            self._deps.ranks.idle()
            self._deps.stop.wait(PAUSE_LOOK_S)
            self.obey()

    def note(self) -> None:
        """Say in the trainer's status which versions can be gone back to."""
        self._progress.rollback_to = json.dumps(self.restorable())

    # Rolling back

    def restorable(self) -> dict[int, bool]:
        """Versions that can be gone back to, newest first, and whether their optimizer is left."""
        weights_dir = Path(self._deps.config.publishing.weights_dir).resolve()
        with_optimizer = self._checkpointed()
        # Merged weights are not among them: what of them is the adapter cannot be told.
        alone = [
            version
            for version in versions_on_disk(weights_dir)
            if (weights_dir / str(version) / NOTE).is_file()
            and is_like(weights_dir / str(version), self._deps.config.lora)
        ]
        return {version: version in with_optimizer for version in sorted({*alone, *with_optimizer}, reverse=True)}

    def _checkpointed(self) -> dict[int, Path]:
        """Checkpoints of a version's very state, by the version."""
        found = {}
        for directory, state in self._saved():
            if state.lineage.versions and state.lineage.versions[-1].step == state.step:
                found[state.lineage.versions[-1].version] = directory
        return found

    def _saved(self) -> Iterator[tuple[Path, TrainerState]]:
        """Checkpoints that can be read, oldest first."""
        for directory in checkpoints.complete(self._deps.config.training.checkpoint_dir):
            try:
                yield directory, checkpoints.read_state(directory)
            except CheckpointError as error:
                self._log.warning("checkpoint left out", detail=str(error))

    def _target(self, version: int) -> Target:
        """Find a version.

        Raises:
            RequestRefusedError: it is nowhere.
        """
        progress = self._progress
        if progress.lineage.current == version and progress.lineage.step_of(version) == progress.step:
            return Target(version, progress.step, progress.lineage, None, here=True)
        if version not in self.restorable():
            left = ", ".join(map(str, self.restorable())) or "none"
            raise RequestRefusedError(
                f"version {version} is not kept; those that can be gone back to are: {left} "
                "(publishing.keep_versions and training.keep_checkpoints say how many stay)"
            )
        checkpoint = self._checkpointed().get(version)
        if checkpoint is not None:
            state = checkpoints.read_state(checkpoint)
            return Target(version, state.step, state.lineage, checkpoint)
        lineage = self._waiting.insist("reading versions", lambda: self._lineage_of(version))
        step = lineage.versions[-1].step
        for earlier, directory in self._checkpointed().items():
            if lineage.step_of(earlier) == step:
                # The same state, released again without a step between, as at a restart.
                checkpoint = directory
        return Target(version, step, lineage, checkpoint)

    async def _lineage_of(self, version: int) -> Lineage:
        """Ancestors of a version and itself; from their notes where it is none of ours (an earlier rollback's)."""
        chain: list[Released] = []
        parent: int | None = version
        while parent is not None and len(chain) < MEMORY:
            known = self._progress.lineage.upto(parent)
            if known.versions:
                return Lineage([*known.versions, *reversed(chain)][-MEMORY:])
            notes = await self._deps.broker.version_notes(parent)
            if not notes.get("step"):
                break
            chain.append(Released(parent, int(notes["step"])))
            parent = int(notes["parent"]) if notes.get("parent") else None
        if not chain:
            raise RequestRefusedError(f"Redis does not know any more of which step version {version} is")
        return Lineage(chain[::-1])

    def _roll_back(self, version: int) -> ControlOutcome:
        self._gate.close()
        target = self._target(version)
        self._waiting.status(f"rolling back to version {version}")
        self._saving.settle()
        left = self._load(target)
        self._deps.reached(Point.ROLLED_BACK)
        scores = self._publishing.probe()
        self._publishing.publish(scores, reason="rollback")
        released = self._progress.lineage.current
        self._log.warning("rolled back", to=version, step=target.step, released=released, state=left)
        detail = f"weights of version {version} (step {target.step}) serve as version {released}; {left}"
        return ControlOutcome(state=ControlState.DONE, detail=detail, version=released)

    def _drill(self) -> ControlOutcome:
        """Publish the weights as they are, then go back to them: both ways are walked, and nothing is changed."""
        current = self._progress.lineage.current
        if current is None or self._progress.lineage.step_of(current) != self._progress.step:
            raise RequestRefusedError("the newest weights are not released; the gate holds them back")
        self._waiting.status("drill: publishing")
        self._publishing.publish(self._publishing.probe(), reason="drill")
        published = self._progress.lineage.current
        assert published is not None
        outcome = self._roll_back(published)
        detail = f"version {current} was published anew as {published}, and gone back to as {outcome.version}"
        return ControlOutcome(state=ControlState.DONE, detail=detail, version=outcome.version)

    def _load(self, target: Target) -> str:
        """Put the learner, progress and checkpoints back; what of the state was left, in words."""
        progress, deps = self._progress, self._deps
        left, began = "weights and optimizer", progress.steps_at_start
        if target.checkpoint is not None:
            self._refuse_other_model(target.checkpoint)
            self._saving.resume_from(target.checkpoint)
            progress.lineage = target.lineage
        elif not target.here:
            left = "weights alone, with a fresh optimizer: no checkpoint of that step is left"
            directory = Path(deps.config.publishing.weights_dir).resolve() / str(target.version)
            deps.ranks.call("adopt", directory)
            notes = self._waiting.insist("reading versions", lambda: deps.broker.version_notes(target.version))
            progress.step = target.step
            progress.saved_step = -1
            progress.lineage = target.lineage
            progress.num_trained = int(notes.get("trained") or 0)
            progress.history = f"weights of version {target.version}"
        progress.exported, progress.exported_step = None, -1
        if not target.here:
            # `training.max_steps` counts on from where this run began, or from before that.
            progress.steps_at_start = min(began, target.step)
            progress.unreleased.clear()
            self._give_up(target)
            self._delete_later(target)
        self._saving.save_rest()
        return left

    def _delete_later(self, target: Target) -> None:
        """A restart takes the newest checkpoint: those of later steps go.

        They go before one is written of a version of which none is left, because only the newest few are kept. Should
        the trainer die in between, the request is still there, and so are the version's weights.
        """
        root = self._deps.config.training.checkpoint_dir
        last = checkpoints.step_directory(root, target.step)
        for directory in checkpoints.complete(root):
            if directory.name > last.name or (directory == last and target.checkpoint is None):
                shutil.rmtree(directory)

    def _refuse_other_model(self, checkpoint: Path) -> None:
        try:
            checkpoints.check_same_model(checkpoints.read_state(checkpoint), self._deps.config, checkpoint)
        except ConfigError as error:
            raise RequestRefusedError(str(error)) from error

    def _give_up(self, target: Target) -> None:
        """What was trained after the target and is not acknowledged comes again; its lineage decides about it.

        What the target's weights hold is not trained again: it is acknowledged with the checkpoint to come.
        """
        deps, progress = self._deps, self._progress
        collection, progress.collection = progress.collection, []
        kept = self._turns_in(target)
        waiting = deps.background.run(deps.source.forget(kept))
        within = set(kept)
        untrained = [entry for entry in progress.unsaved if entry.turn_id not in within]
        progress.unsaved[:] = [*(entry for entry in progress.unsaved if entry.turn_id in within), *waiting]
        given_back = [*untrained, *(held.entry for held in collection)]
        self._waiting.insist("giving samples back", lambda: deps.source.untrain(given_back))

    def _turns_in(self, target: Target) -> list[str]:
        """Turns in the target's weights, oldest first, as far as they may still be in the stream.

        Without a checkpoint of its own: those of the newest one before it, and what its note tells of.
        """
        if target.checkpoint is not None:
            return checkpoints.read_state(target.checkpoint).trained_turn_ids
        note = read_note(Path(self._deps.config.publishing.weights_dir).resolve() / str(target.version))
        found = {} if note is None else dict.fromkeys(note.trained)
        for _, state in reversed(list(self._saved())):
            released = state.lineage.current
            if state.step <= target.step and released is not None and target.lineage.step_of(released) is not None:
                return list(dict.fromkeys(state.trained_turn_ids) | found)
        return list(found)
