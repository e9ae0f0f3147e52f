"""Which samples of a batch no step can be made with: each is differentiated alone, on all ranks alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hintloop_trainer.errors import TrainingError

if TYPE_CHECKING:
    from hintloop_trainer.learner import Learner


def culprits(learner: Learner, encoded: list[bytes]) -> list[int]:
    """Places in the batch of the encoded samples whose loss or gradient is not finite; empty when none is by itself.

    Takes about as long as a step. The weights stay as they are.
    """
    found = []
    examples = learner.read(encoded)
    for place, example in enumerate(examples):
        plan = learner.plan([example], among=examples)
        if learner.reference is not None:
            plan.batches = learner.reference.beside(plan.batches)
        try:
            learner.differentiate(plan)
        except TrainingError:
            found.append(place)
    return found
