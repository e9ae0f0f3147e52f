"""A file that is there whole, or not at all."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from hintloop.errors import CommandError


class Written:
    """A file written aside and put in its place at the end; a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._aside = path.with_name(f".{path.name}.partial")
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._aside.open("wb")
        except OSError as error:
            raise CommandError(f"{str(self._path)!r} cannot be written: {error}; give another file") from error
        return self

    def write(self, data: bytes) -> None:
        """Append ``data``."""
        assert self._file is not None, "the file is open inside the context"
        try:
            self._file.write(data)
        except OSError as error:
            raise CommandError(f"{str(self._path)!r} cannot be written: {error}; make room, or give another") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None, "the file is open inside the context"
        self._file.close()
        if kind is None:
            self._aside.replace(self._path)
        else:
            self._aside.unlink(missing_ok=True)
