"""Checkpoints: weights, optimizer, generators, and what has been trained; durable before anyone relies on them.

A checkpoint is a directory ``step-<n>``: Megatron's sharded files and ``state.json``. It is written under
another name, synced, and renamed, so a directory of that name is whole.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError
from megatron.core import dist_checkpointing
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

from hintloop_trainer import forced
from hintloop_trainer.errors import CheckpointError
from hintloop_trainer.learner import Learner
from hintloop_trainer.lineage import Lineage
from hintloop_trainer.megatron import cpu, export, optimizer

PREFIX = "step-"
STATE_FILE = "state.json"


class TrainerState(msgspec.Struct):
    """What the run has done up to a checkpoint."""

    step: int
    run: str
    lineage: Lineage
    trained_turn_ids: list[str]
    """Turns trained and not known to be acknowledged, whichever run trained them: they may still be in the stream."""
    num_trained: int
    """Samples trained over all runs."""
    model_path: str
    dtype: str
    lora: str = ""
    """Size and place of the adapters, whose base is in ``model_path`` and not here; empty: the weights are here."""


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
def _deterministic_warnings() -> Iterator[None]:
    with cpu.quietly(), warnings.catch_warnings():
        # torch's checkpoint code warns about its own deprecated parts from inside.
        warnings.simplefilter("ignore")
        yield


def _generators() -> dict[str, Any]:
    return {"torch": torch.get_rng_state(), "tracker": get_cuda_rng_tracker().get_states()}


def _sharded(learner: Learner, *, loading: bool) -> dict[str, Any]:
    weights = learner.sharded_weights()
    return {
        "model": weights,
        "optimizer": learner.optimizer.sharded_state_dict(weights, is_loading=loading),
        "generators": _generators(),
        "teacher": {} if learner.own_teacher is None else learner.own_teacher.sharded(),
    }


class CheckpointStore:
    """Writes and reads checkpoints of one learner. Methods are called on all ranks."""

    def __init__(self, root: Path, learner: Learner, keep: int) -> None:
        """Keep the newest ``keep`` checkpoints below ``root``."""
        self._root = root
        self._learner = learner
        self._keep = keep

    def save(self, state: TrainerState) -> Path:
        """Write a checkpoint; it is durable when this returns."""
        target = step_directory(self._root, state.step)
        aside = self._root / f".{target.name}.partial"
        leader = self._learner.layout.rank == 0
        if leader:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
        dist.barrier()
        with _deterministic_warnings():
            dist_checkpointing.save(_sharded(self._learner, loading=False), str(aside))
        dist.barrier()
        if leader:
            (aside / STATE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(state)))
            if target.exists():
                shutil.rmtree(target)
            export.put_in_place(aside, target)
            self._prune()
        dist.barrier()
        return target

    def load(self, directory: Path) -> None:
        """Put the learner where the checkpoint left it; the layout of ranks may differ.

        What is configured (learning rate, decay, betas) is as configured now, not as it was saved.

        Raises:
            CheckpointError: the files cannot be read into this model.
        """
        try:
            with _deterministic_warnings():
                loaded = dist_checkpointing.load(_sharded(self._learner, loading=True), str(directory))
                self._learner.restore_weights(loaded["model"])
                self._learner.optimizer.load_state_dict(loaded["optimizer"])
                if self._learner.own_teacher is not None:
                    self._learner.own_teacher.restore(loaded["teacher"])
        except (KeyError, ValueError, RuntimeError, OSError) as error:
            raise CheckpointError(f"{directory} cannot be loaded: {type(error).__name__}: {error}") from error
        optimizer.configure(self._learner.optimizer, self._learner.config.training)
        torch.set_rng_state(loaded["generators"]["torch"])
        get_cuda_rng_tracker().set_states(loaded["generators"]["tracker"])

    def _prune(self) -> None:
        for old in complete(self._root)[: -self._keep]:
            shutil.rmtree(old)


class Resumable:
    """The learner with its checkpoints: what :class:`ranks.Ranks` calls on every rank."""

    def __init__(self, learner: Learner, store: CheckpointStore) -> None:
        """Join the two."""
        self.learner = learner
        self.begin = learner.begin
        self.choose = partial(forced.choose, learner)
        self.teach = partial(forced.teach, learner)
        self.step = learner.step
        self.trace = learner.trace
        self.score = learner.score
        self.export = learner.export
        self.export_adapter = learner.export_adapter
        self.save = store.save
        self.load = store.load


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
