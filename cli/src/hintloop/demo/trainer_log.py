"""What the demo tells of each optimizer step, by what the trainer wrote about it."""

from __future__ import annotations

import msgspec
from hintloop_contract.config.schema import Config

from hintloop import trainer_files
from hintloop.demo.advantages import StepAdvantages


class StepRecord(msgspec.Struct, frozen=True):
    """One optimizer step."""

    step: int
    version: int
    loss: float
    tokens_trained: int
    advantage_mean: float
    advantage_std: float
    advantage_share_positive: float
    advantage_share_negative: float

    @property
    def advantages(self) -> StepAdvantages:
        """Advantages over the step's trained tokens."""
        return StepAdvantages(
            self.tokens_trained,
            self.advantage_mean,
            self.advantage_std,
            self.advantage_share_positive,
            self.advantage_share_negative,
        )

    def line(self) -> str:
        """For people."""
        return f"loss {self.loss:+.4f}, advantage {self.advantage_mean:+.3f} ± {self.advantage_std:.3f}"


def read_steps(config: Config) -> list[StepRecord]:
    """Every step that the weights descend from, so far."""
    steps = trainer_files.read_steps(config.training.checkpoint_dir.parent)
    return [msgspec.convert(step, StepRecord) for step in steps]
