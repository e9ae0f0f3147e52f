"""What the trainer writes beside its checkpoints: one line a step, and per-token differences of single answers."""

from __future__ import annotations

from pathlib import Path

import msgspec
from hintloop_contract.config.schema import Config

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


class TokenRecord(msgspec.Struct, frozen=True):
    """What the hint did to each token of one trained answer: nats, all lists are ``[T]``.

    ``old_logprobs`` without the hint, ``teacher_logprobs`` with it.
    """

    step: int
    turn_id: str
    response_ids: list[int]
    teacher_logprobs: list[float]
    old_logprobs: list[float]
    advantages: list[float]
    hint: str | None = None
    score: int | None = None


def _lines(path: Path) -> list[bytes]:
    """Complete lines of a file that may be written to just now."""
    if not path.is_file():
        return []
    return [line for line in path.read_bytes().split(b"\n")[:-1] if line.strip()]


def read_steps(config: Config) -> list[StepRecord]:
    """Every step of the run so far."""
    path = config.training.checkpoint_dir.parent / "metrics.jsonl"
    return [msgspec.json.decode(line, type=StepRecord) for line in _lines(path)]


def read_tokens(config: Config) -> list[TokenRecord]:
    """Per-token differences that were kept."""
    path = config.training.checkpoint_dir.parent / "teacher_logprobs.jsonl"
    return [msgspec.json.decode(line, type=TokenRecord) for line in _lines(path)]
