"""A file that is there whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from hintloop.errors import CommandError


class Written:
    """A file written aside and put in its place at the end; a context manager.

    ``sources`` are the files that its content is made from, which it must not replace.

    Raises:
        CommandError: ``path`` can be no such file, is one of ``sources``, or cannot be written.
    """

    def __init__(self, path: Path, sources: Sequence[Path] = ()) -> None:
        self._path = path
        self._sources = sources
        self._aside = path.parent / f".{path.name}.partial"
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        try:
            self._refuse()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._aside.open("wb")
        except OSError as error:
            raise self._failed(error) from error
        return self

    def write(self, data: bytes) -> None:
        """Append ``data``."""
        assert self._file is not None, "the file is open inside the context"
        try:
            self._file.write(data)
        except OSError as error:
            raise self._failed(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None, "the file is open inside the context"
        placed = False
        try:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            if kind is None:
                self._aside.replace(self._path)
                placed = True
        except OSError as failure:
            if kind is None:  # else the first failure is the one to tell
                raise self._failed(failure) from failure
        finally:
            if not placed:
                with suppress(OSError):
                    self._file.close()
                self._aside.unlink(missing_ok=True)

    def _refuse(self) -> None:
        where = f"--out {str(self._path)!r}"
        # An empty value is the directory `.` as a path.
        if self._path.name in ("", "..") or self._path.is_dir():
            raise CommandError(f"{where} is a directory; give the name of a file in it")
        if not self._path.exists():
            return
        if not self._path.is_file():
            raise CommandError(f"{where} is no regular file; give the name of one")
        for source in self._sources:
            if source.exists() and source.samefile(self._path):
                raise CommandError(f"{where} is read, too, and would be overwritten; give another file")

    def _failed(self, error: OSError) -> CommandError:
        return CommandError(
            f"--out {str(self._path)!r} cannot be written: {error}; make room and permit it, or give another file"
        )
