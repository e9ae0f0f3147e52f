"""Event files for TensorBoard: every number of a step is a scalar, the words stand in a text beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hintloop_trainer.metrics.sink import Metrics

#: What a figure's name begins with, and the section of the page that it stands in; the first that fits.
SECTIONS = {
    "run_advantage_": "advantage_of_run",
    "advantage_": "advantage",
    "teacher_minus_student_": "teacher",
    "engine_difference_": "engine",
    "tis_": "engine",
    "loss": "loss",
    "ratio_": "loss",
    "clip_fraction": "loss",
    "seconds_": "seconds",
    "effective_": "effective",
    "memory_": "memory",
    "dropped_": "dropped",
    "staleness_": "samples",
}


def tag(name: str) -> str:
    """Section and name of a figure."""
    section = next((section for start, section in SECTIONS.items() if name.startswith(start)), "step")
    return f"{section}/{name}"


class TensorboardSink:
    """Writes below one directory, one file for each stretch of training."""

    def __init__(self, directory: Path, run: str) -> None:
        """Write to ``directory`` as ``run``."""
        self._directory = directory
        self._run = run
        self._stretch = 0
        self._words: dict[str, str] = {}
        self._writer: Any = None

    def begin(self, step: int) -> None:
        """Open a file that tells TensorBoard to forget steps after ``step``."""
        from tensorboardX import SummaryWriter

        self.close()
        self._stretch += 1
        # Files are named by the second otherwise, and one could be written over another.
        suffix = f".{self._run}.{self._stretch}"
        self._writer = SummaryWriter(str(self._directory), purge_step=step + 1, filename_suffix=suffix)

    def write(self, metrics: Metrics) -> None:
        """Add the numbers of one step; they are on disk when this returns."""
        if self._writer is None:
            # It could not be opened, which was said then.
            return
        step = int(metrics["step"] or 0)
        for name, value in metrics.items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(tag(name), value, step)
        words = {name: value for name, value in metrics.items() if isinstance(value, str)}
        if words != self._words:
            self._writer.add_text("method", "\n".join(f"- {name}: {value}" for name, value in words.items()), step)
            self._words = words
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
