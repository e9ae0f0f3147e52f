"""Checkpoints: weights, optimizer, generators, and what has been trained; durable before anyone relies on them.

A checkpoint is a directory ``step-<n>``: Megatron's sharded files, ``state.json``, and in ``hf/`` the same weights as
they were exported. It is written under another name, synced, and renamed, so a directory of that name is whole.
"""

from __future__ import annotations

import shutil
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog
import torch
import torch.distributed as dist
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedBase, is_main_replica
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
from torch.distributed.checkpoint.api import CheckpointException

from hintloop_trainer import blame, durable, forced, generators, own_teacher
from hintloop_trainer.errors import CheckpointError
from hintloop_trainer.forked_save import ForkedSave
from hintloop_trainer.learner import Learner
from hintloop_trainer.lineage import Lineage
from hintloop_trainer.megatron import cpu, optimizer
from hintloop_trainer.points import Point, Reached, pass_by
from hintloop_trainer.publish.release import NOTE
from hintloop_trainer.snapshot import Snapshot, adopt
from hintloop_trainer.tally import Moments

PREFIX = "step-"
STATE_FILE = "state.json"
EXPORT = "hf"
#: Room held for the small files that come last, so that a volume that fills up meanwhile does not lack it then.
_RESERVE_FILE, _RESERVE_BYTES = ".reserve", 16 * 2**20


class TrainerState(msgspec.Struct):
    """What the run has done up to a checkpoint."""

    step: int
    run: str
    lineage: Lineage
    trained_turn_ids: list[str]
    """The newest turns that are in these weights, oldest first, whichever run trained them: all that may still be in
    the stream, and those that an older copy of it could bring back."""
    num_trained: int
    """Samples trained over all runs."""
    model_path: str
    dtype: str
    lora: str = ""
    """Size and place of the adapters, whose base is in ``model_path`` and not here; empty: the weights are here."""
    history: str = ""
    """SHA-256 (hex) over the history before and a turn's id, for every turn in these weights in the order trained."""
    ranks: list[int] = []
    """Layout that the generators belong to (:func:`generators.sizes`)."""
    advantages: Moments = msgspec.field(default_factory=Moments)
    """Of all advantages up to here."""


def step_directory(root: Path, step: int) -> Path:
    """Directory of the checkpoint of ``step``."""
    return root / f"{PREFIX}{step:09d}"


def complete(root: Path) -> list[Path]:
    """Whole checkpoints below ``root``, oldest first."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.glob(f"{PREFIX}*") if (path / STATE_FILE).is_file())


def read_state(directory: Path) -> TrainerState:
    """State of a checkpoint.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        return msgspec.json.decode((directory / STATE_FILE).read_bytes(), type=TrainerState)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{directory / STATE_FILE} cannot be read: {error}") from error


@contextmanager
def _quietly() -> Iterator[None]:
    with cpu.quietly(), warnings.catch_warnings():
        # torch's checkpoint code warns about its own deprecated parts from inside.
        warnings.simplefilter("ignore")
        yield


def remove_leftovers(root: Path) -> None:
    """Delete what runs left that ended while they wrote; to be called before anything is written."""
    for left in root.glob(f".{PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


def _sharded(learner: Learner, *, with_generators: bool, loading: bool, with_teacher: bool = True) -> dict[str, Any]:
    weights = learner.sharded_weights()
    found = {
        "model": weights,
        "optimizer": optimizer.sharded(learner.optimizer, weights, loading=loading),
        "teacher": learner.own_teacher.sharded() if learner.own_teacher is not None and with_teacher else {},
    }
    if with_generators:
        found["generators"] = generators.sharded(learner.layout)
    return found


def _num_bytes(sharded: dict[str, Any]) -> int:
    """Bytes that all ranks together will write. Collective."""
    mine = sum(
        entry.data.nbytes
        for entry in nested_values(sharded)
        if isinstance(entry, ShardedBase) and isinstance(entry.data, torch.Tensor) and is_main_replica(entry.replica_id)
    )
    total = torch.tensor([mine], dtype=torch.int64, device=cpu.device())
    dist.all_reduce(total)
    return int(total.item())


@dataclass(frozen=True, slots=True)
class _Writing:
    """A checkpoint whose files are being written."""

    step: int
    state: bytes
    """As it was when the checkpoint was begun; training goes on meanwhile."""
    aside: Path
    target: Path
    num_bytes: int


class CheckpointStore:
    """Writes and reads checkpoints of one learner, one at a time. Methods are called on all ranks."""

    def __init__(self, root: Path, learner: Learner, keep: int, reached: Reached = pass_by) -> None:
        """Keep the newest ``keep`` checkpoints below ``root``."""
        self._root = root
        self._learner = learner
        self._keep = keep
        self._reached = reached
        self._leader = learner.layout.rank == 0
        self._writing: _Writing | None = None
        self._calls = AsyncCallsQueue(persistent=False)

    def begin(self, state: TrainerState, exported: Path | None) -> None:
        """Begin to write a checkpoint of this moment; :meth:`finish` tells when it is durable.

        ``exported`` has the same weights as a Hugging Face directory; without it they are exported here.

        Raises:
            CheckpointError: it cannot be written; nothing is left of it.
        """
        target = step_directory(self._root, state.step)
        # A name of its own: a killed run's writer may live on for a moment.
        names = [f".{target.name}.{uuid.uuid4().hex[:8]}.partial"]
        dist.broadcast_object_list(names, src=0)
        sharded = _sharded(self._learner, with_generators=True, loading=False)
        state.ranks = generators.sizes(self._learner.layout)
        data = msgspec.json.format(msgspec.json.encode(state))
        self._writing = _Writing(state.step, data, self._root / names[0], target, _num_bytes(sharded))
        try:
            self._prepare(self._writing)
            self._start(sharded, self._writing.aside, exported)
        except CheckpointError as error:
            raise self._abandoned(str(error)) from error
        if self._leader:
            self._reached(Point.WRITING)

    def _prepare(self, writing: _Writing) -> None:
        def make_room() -> None:
            if durable.free_bytes(self._root) < writing.num_bytes + _RESERVE_BYTES:
                raise OSError("the volume has not enough room")
            writing.aside.mkdir(parents=True)

        durable.together(make_room if self._leader else None)

    def _accompany(self, aside: Path, exported: Path | None) -> None:
        """What stands beside Megatron's files, put there once its first one is."""

        def share() -> None:
            durable.reserve(aside / _RESERVE_FILE, _RESERVE_BYTES)
            if exported is not None:
                durable.share_files(exported, aside / EXPORT, but=(NOTE,))

        durable.agree(None)
        durable.together(share if self._leader else None)
        if exported is None:
            self._learner.export(aside / EXPORT)

    def _start(self, sharded: dict[str, Any], aside: Path, exported: Path | None) -> None:
        failure: OSError | None = None
        strategy = ForkedSave(partial(self._accompany, aside, exported))
        try:
            with _quietly():
                request = dist_checkpointing.save(sharded, str(aside), strategy, async_sharded_save=True)
                request.finalize_fns.insert(0, lambda: (aside / _RESERVE_FILE).unlink(missing_ok=True))
                self._calls.schedule_async_request(request)
        except OSError as error:
            failure = error
        durable.agree(failure)

    def finish(self) -> Path | None:
        """The checkpoint begun last once it is durable on all ranks; ``None`` as long as it is not, or if none is.

        Raises:
            CheckpointError: it could not be written; nothing is left of it, and those before it stand.
        """
        if self._writing is None:
            return None
        writing = self._writing
        try:
            with _quietly():
                if not self._calls.maybe_finalize_async_calls():
                    return None
            durable.together(partial(self._put_in_place, writing) if self._leader else None)
        except (CheckpointException, CheckpointError, OSError) as error:
            raise self._abandoned(_cause(error)) from error
        self._writing = None
        if self._leader:
            self._prune()
        return writing.target

    def _put_in_place(self, writing: _Writing) -> None:
        (writing.aside / STATE_FILE).write_bytes(writing.state)
        self._reached(Point.BEFORE_RENAME)
        durable.put_in_place(writing.aside, writing.target)
        self._reached(Point.AFTER_RENAME)

    def _prune(self) -> None:
        for old in complete(self._root)[: -self._keep]:
            try:
                shutil.rmtree(old)
            except OSError as error:
                structlog.get_logger().warning("old checkpoint not deleted", path=str(old), detail=str(error))

    def _abandoned(self, cause: str) -> CheckpointError:
        """Leave nothing of the checkpoint that is being written; the error that says why."""
        writing, self._writing = self._writing, None
        assert writing is not None
        for call in self._calls.async_calls:
            call.async_caller.close(abort=True)
        self._calls.async_calls.clear()
        free = durable.free_bytes(self._root)
        if self._leader:
            shutil.rmtree(writing.aside, ignore_errors=True)
        return CheckpointError(
            f"no checkpoint of step {writing.step} in {self._root}: {cause}. It takes {writing.num_bytes} bytes; "
            f"{free} were free"
        )

    def load(self, directory: Path) -> None:
        """Put the learner where the checkpoint left it; the layout of ranks may differ.

        What is configured (learning rate, decay, betas) is as configured now, not as it was saved; a moving average
        that the checkpoint has not begins at its weights.

        Raises:
            CheckpointError: the files cannot be read into this model.
            ConfigError: the checkpoint is one of the other kind of optimizer.
        """
        state, learner = read_state(directory), self._learner
        same = state.ranks == generators.sizes(learner.layout)
        try:
            with _quietly():
                optimizer.check_saved(directory, learner.config.training)
                taught = own_teacher.is_in(directory)
                asked = _sharded(learner, with_generators=same, loading=True, with_teacher=taught)
                loaded = dist_checkpointing.load(asked, str(directory))
                learner.restore_weights(loaded["model"])
                optimizer.restore(learner.optimizer, loaded["optimizer"], learner.config.training)
                if learner.own_teacher is not None and taught:
                    learner.own_teacher.restore(loaded.get("teacher", {}))
                elif learner.own_teacher is not None:
                    # As it was configured then, nothing was averaged.
                    learner.own_teacher.start_from(learner.model)
                    if self._leader and not learner.own_teacher.is_fixed:
                        structlog.get_logger().warning(
                            "the teacher's moving average begins at the checkpoint's weights"
                        )
        except (CheckpointException, KeyError, ValueError, RuntimeError, OSError, EOFError) as error:
            raise CheckpointError(
                f"{directory} cannot be loaded: {type(error).__name__}: {_cause(error)}. To go on from the checkpoint "
                "before it, move it away; the samples that it alone holds are then lost"
            ) from error
        if same:
            generators.restore(loaded["generators"])
        else:
            generators.begin_anew(learner.config.training.seed + state.step)


def _cause(error: BaseException) -> str:
    """What Megatron's wrapped errors come from, in a line."""
    failures = getattr(error, "failures", None)
    found = [str(wrapped[0]) for wrapped in failures.values()] if failures else [str(error)]
    text = "; ".join(line.removeprefix("Worker failure: ") for line in found) or type(error).__name__
    if "results_queue should not be empty" in text:
        return "the process that writes it was killed"
    return text


class Resumable:
    """The learner with its checkpoints: what :class:`ranks.Ranks` calls on every rank."""

    def __init__(self, learner: Learner, store: CheckpointStore) -> None:
        """Join the two."""
        self.learner = learner
        self.begin = learner.begin
        self.choose = partial(forced.choose, learner)
        self.teach = partial(forced.teach, learner)
        self.step = learner.step
        self.blame = partial(blame.culprits, learner)
        self.trace = learner.trace
        self.score = learner.score
        self.export = learner.export
        self.export_whole = learner.export_whole
        self.begin_save = store.begin
        self.finish_save = store.finish
        self.load = store.load
        snapshot = Snapshot(learner)
        self.keep_release = snapshot.keep
        self.back_to_release = snapshot.go_back
        self.adopt = partial(adopt, learner)


def check_same_model(state: TrainerState, config: Config, directory: Path) -> None:
    """Refuse a checkpoint of another model.

    Raises:
        ConfigError: the model's directory or dtype differ, or its adapters.
    """
    if state.lora != config.lora.described:
        raise ConfigError(
            f"[lora] asks for {config.lora.described or 'no adapters'}, but the checkpoint {directory} was made with "
            f"{state.lora or 'none'}; set it back, or give another training.checkpoint_dir"
        )
    for key, saved, now in (
        ("student_model_path", state.model_path, config.model.student_model_path),
        ("dtype", state.dtype, config.model.dtype),
    ):
        if saved != now:
            raise ConfigError(
                f"model.{key} is {now!r}, but the checkpoint {directory} was made with {saved!r}; set it back, or "
                "give another training.checkpoint_dir"
            )
