"""Files that all ranks rely on: written aside, synced, renamed; failures of one rank are known to all."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
import torch.distributed as dist

from hintloop_trainer.errors import CheckpointError

_LOCK = ".lock"
#: Errors that say that two directories cannot share files.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


def agree(failure: Exception | None) -> None:
    """Tell all ranks of this one's failure, if there is one. Collective.

    Raises:
        CheckpointError: some rank failed; on all of them.
    """
    failures: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(failures, "" if failure is None else f"{type(failure).__name__}: {failure}")
    found = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(failures) if text)
    if found:
        raise CheckpointError(found)


def together(work: Callable[[], None] | None) -> None:
    """Do ``work`` where it is given, and know on every rank whether it went well. Collective.

    Raises:
        CheckpointError: it did not; on all ranks.
    """
    failure: OSError | None = None
    if work is not None:
        try:
            work()
        except OSError as error:
            failure = error
    agree(failure)


def free_bytes(directory: Path) -> int:
    """Room on the volume of ``directory``, which may not exist yet."""
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free


def reserve(file: Path, num_bytes: int) -> None:
    """Hold room on the volume until ``file`` is deleted.

    Raises:
        OSError: there is not so much.
    """
    descriptor = os.open(file, os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    finally:
        os.close(descriptor)


def share_files(source: Path, target: Path, but: Collection[str] = ()) -> None:
    """Give ``target`` the files of ``source``, without hidden ones and ``but``.

    As links where the volume is the same, else as copies.
    """
    target.mkdir()
    for file in sorted(source.iterdir()):
        if file.name in but or file.name.startswith("."):
            continue
        try:
            os.link(file, target / file.name)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            shutil.copyfile(file, target / file.name)


def put_in_place(aside: Path, target: Path) -> None:
    """Sync ``aside`` and all below it and rename it to ``target``, durably; what was there before goes."""
    for path in [*aside.rglob("*"), aside]:
        _sync(path)
    replaced = None
    if target.exists():
        replaced = target.with_name(f".{target.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        target.rename(replaced)
    aside.rename(target)
    _sync(target.parent)
    if replaced is not None:
        shutil.rmtree(replaced)


def _sync(path: Path) -> None:
    """Make a file's content durable, or what a directory lists."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(file: Path, data: bytes) -> None:
    """Write a small file, whole or not at all, durably."""
    aside = file.with_name(f".{file.name}.partial")
    with aside.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    aside.rename(file)
    _sync(file.parent)


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Hold ``directory`` against other trainers, on this host and on those that share the volume.

    Raises:
        CheckpointError: another trainer holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # Of the kind that is gone with the process, and that a forked one does not inherit.
    with (directory / _LOCK).open("a+") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                structlog.get_logger().warning("checkpoints are not locked", path=str(directory), detail=str(error))
                yield
                return
            lock.seek(0)
            raise CheckpointError(
                f"training.checkpoint_dir {directory} is in use by another trainer ({lock.read().strip()}); end that "
                "one, or give this one a directory of its own"
            ) from error
        lock.truncate(0)
        lock.write(f"host {socket.gethostname()}, process {os.getpid()}\n")
        lock.flush()
        yield
