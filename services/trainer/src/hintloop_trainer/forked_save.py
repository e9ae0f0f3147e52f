"""Megatron's sharded files, written by a forked copy of this process while training goes on.

The copy shares its memory with the trainer: a page is doubled only when training changes it before it is written.
Owns the writing; what a checkpoint holds and when it counts are :mod:`checkpoints`' business.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import queue
import signal
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

_PR_SET_PDEATHSIG = 1


class Results:
    """What the writing process found, read when it has ended. In memory: a full disk must not hide that it is full."""

    def __init__(self) -> None:
        """Make the memory that both processes see."""
        self._descriptor = os.memfd_create("checkpoint")

        # At the interpreter's end as well, when this module's names may be gone before its objects.
        weakref.finalize(self, os.close, self._descriptor)

    def put(self, found: Any) -> None:
        """Leave ``found`` for the trainer."""
        data = memoryview(pickle.dumps(found))
        while data:
            data = data[os.write(self._descriptor, data) :]

    def get_nowait(self) -> Any:
        """What was left.

        Raises:
            queue.Empty: nothing was; the process was killed.
        """
        size = os.fstat(self._descriptor).st_size
        if not size:
            raise queue.Empty
        return pickle.loads(os.pread(self._descriptor, size, 0))


class _Single:
    """Takes the one result of a file."""

    def __init__(self) -> None:
        self.found: Any = None

    def put(self, found: tuple[int, Any]) -> None:
        self.found = found[1]

    def get(self) -> None:
        """Megatron marks its sub-processes as ended with these two; there are none."""

    def task_done(self) -> None:
        """See :meth:`get`."""


def _die_with(parent: int) -> None:
    # Else it would go on writing beside the trainer that takes the place of a killed one.
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _write(transforms: list[Any], parent: int, rank: int, buckets: list[Any], results: Results) -> None:
    """Write and sync this rank's files; runs in the forked process.

    Megatron's own function forks once more for each file, and waits for ever when one of those is killed.
    """
    _die_with(parent)
    # The trainer's threads do not exist here, and OpenMP would wait for them.
    torch.set_num_threads(1)
    found: dict[int, Any] = {}
    for index, bucket in enumerate(buckets):
        single: Any = _Single()
        filesystem_async.FileSystemWriterAsync.write_preloaded_data(transforms, index, bucket, single, single, True)
        if isinstance(single.found, Exception):
            results.put(single.found)
            return
        found[index] = single.found
    results.put(found)


class ForkedSave(TorchDistSaveShardedStrategy):  # type: ignore[misc]  # Megatron has no types
    """Megatron's strategy for the `torch_dist` format, with :func:`_write` as the writer: one file a rank."""

    def __init__(self, before: Callable[[], None]) -> None:
        """``before`` is called on every rank once the parts that are not sharded are written."""
        super().__init__("torch_dist", 1, thread_count=1)
        self._before = before

    def async_save(self, sharded_state_dict: Any, checkpoint_dir: Path) -> AsyncRequest:
        """What remains to be done in the other process, and after it."""
        self._before()
        # Else Megatron starts a server process for its results, and a killed trainer leaves that behind.
        filesystem_async._results_queue = Results()
        return super().async_save(sharded_state_dict, checkpoint_dir)

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> AsyncRequest:
        request = super()._get_save_and_finalize_callbacks(writer, save_state_dict_ret)
        if request.async_fn is None:
            return request
        transforms = [writer.transforms] if hasattr(writer, "transforms") else []
        return request._replace(async_fn=partial(_write, transforms, os.getpid()))
