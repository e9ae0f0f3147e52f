"""A log of captures that people can read and `hintloop link` can replay. Owns its format: one JSON object a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog
from hintloop_contract.messages import Capture

log = structlog.get_logger()


class CaptureLog:
    """Appends captures to a file. Arrays by which nothing is linked are left out."""

    def __init__(self, path: Path) -> None:
        """Append to ``path``, which is made when it is missing."""
        self._path = path
        self._failing = False

    def write(self, captures: Sequence[Capture]) -> None:
        """Append captures. A file that cannot be written is reported once and stops nothing."""
        lines = b"".join(log_line(capture) for capture in captures)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as stream:
                stream.write(lines)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("the capture log cannot be written", path=str(self._path), error=str(error))
            self._failing = True


def log_line(capture: Capture) -> bytes:
    """A capture as a line of a log."""
    return msgspec.json.encode(msgspec.structs.replace(capture, prompt_ids=None, logprobs=None)) + b"\n"
