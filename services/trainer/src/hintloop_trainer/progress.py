"""How far training is: one object, changed in place by the parts of the loop."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    unsaved: list[Held] = field(default_factory=list)
    """Trained since the last checkpoint, still pending in the stream."""
    saved_step: int = 0
    steps_at_start: int = 0
    """The step that this run began with."""
    advantages: Moments = field(default_factory=Moments)
