"""How far training is: one object, changed in place by the parts of the loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hintloop_contract.broker import Entry

from hintloop_trainer.lineage import Lineage
from hintloop_trainer.samples import Held
from hintloop_trainer.tally import Moments


@dataclass(slots=True)
class Progress:
    """How far training is."""

    step: int = 0
    num_trained: int = 0
    lineage: Lineage = field(default_factory=Lineage)
    collection: list[Held] = field(default_factory=list)
    """Samples of the collection that is being trained, as far as no step was made with them yet."""
    unsaved: list[Entry[Any]] = field(default_factory=list)
    """Trained since the last checkpoint was begun, still pending in the stream; without their messages."""
    saved_step: int = 0
    steps_at_start: int = 0
    """The step that this run began with."""
    history: str = ""
    """Stands for all turns in the weights, in the order trained (:attr:`checkpoints.TrainerState.history`)."""
    exported: Path | None = None
    """Directory with the weights of :attr:`exported_step`."""
    exported_step: int = -1
    unreleased: list[Entry[Any]] = field(default_factory=list)
    """Trained since the last release, without their messages; some of :attr:`unsaved`."""
    holds: int = 0
    """Releases held back since the last one that was not."""
    alarm: str = ""
    """Why the last release was held back; empty when it was not."""
    paused: str = ""
    """Why training stands still; empty when it does not."""
    rollback_to: str = "{}"
    """JSON: versions that can be gone back to, and whether their optimizer is left."""
    advantages: Moments = field(default_factory=Moments)
