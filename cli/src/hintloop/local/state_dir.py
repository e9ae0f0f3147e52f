"""The state directory of a stack: one owner at a time, and only directories of ours are ever emptied."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Literal, Self

from hintloop.errors import StateDirError

#: Marks a directory as a stack's state, so that nothing else is mistaken for one. Its text is the owner.
MARKER = ".hintloop-state"

#: The command whose state it is: the demo empties its directory, `up` and `replay` keep what is in theirs.
Owner = Literal["up", "demo", "replay"]


def in_use(path: Path) -> bool:
    """Whether a stack runs in this directory now."""
    try:
        lock = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def owner_of(path: Path) -> Owner:
    """The command that a directory's stack is started with; `up` when nothing is said there."""
    marker = path / MARKER
    return "demo" if marker.is_file() and marker.read_text(encoding="utf-8").strip() == "demo" else "up"


class StateDir:
    """A locked state directory; a context manager. The lock goes with this process, however it ends."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self.path = path.resolve()
        self.owner = owner
        self._lock: int | None = None

    @property
    def logs(self) -> Path:
        """Where the processes' logs are written."""
        return self.path / "logs"

    @property
    def config(self) -> Path:
        """What `up` decided, laid over the user's configuration."""
        return self.path / "config.toml"

    def __enter__(self) -> Self:
        if self.path.exists() and not self.path.is_dir():
            raise StateDirError(f"--state-dir {self.path} is not a directory; give another")
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(lock, 32).decode().strip() or "unknown"
            os.close(lock)
            raise StateDirError(
                f"--state-dir {self.path} is in use by process {owner}; end it first or give another directory"
            ) from None
        try:
            self._require_ours()
        except StateDirError:
            os.close(lock)
            raise
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock = lock
        return self

    def _require_ours(self) -> None:
        marker = self.path / MARKER
        found = marker.read_text(encoding="utf-8").strip() if marker.exists() else self.owner
        if found != self.owner:
            raise StateDirError(
                f"--state-dir {self.path} holds the state of `hintloop {found or 'an older version'}`, its checkpoints "
                f"included, and is not used by `hintloop {self.owner}`; give another directory, or remove this one"
            )

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def mark(self) -> None:
        """Make it this command's state directory."""
        (self.path / MARKER).write_text(f"{self.owner}\n", encoding="utf-8")

    def clear(self) -> None:
        """Empty it, the lock aside.

        Raises:
            StateDirError: it holds something and was never a stack's state.
        """
        content = [entry for entry in self.path.iterdir() if entry.name != "lock"]
        if content and not (self.path / MARKER).exists():
            raise StateDirError(
                f"--state-dir {self.path} holds {content[0].name!r} and is no state of an earlier run; "
                "it would be emptied, so give an empty or new directory"
            )
        for entry in content:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        self.mark()
