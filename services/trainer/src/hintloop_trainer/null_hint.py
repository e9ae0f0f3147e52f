"""The null-hint control, seen from the trainer: on unhinted tokens the PRM engine's scores are the student's own.

The reference is what the trainer's first weights said of the probe, kept beside the checkpoints: after a restart the
weights have moved on, the teacher's have not. A teacher of other weights differs, and rightly so; a shifted or
tempered one differs by more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np
import structlog
from hintloop_contract import rounding
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError
from hintloop_contract.tensors import pack, unpack

from hintloop_trainer.prm_client import PrmClient, Question, Unscorable

REFERENCE_FILE = "null_hint_reference.json"


class Reference(msgspec.Struct, frozen=True):
    """What the student's first weights said of ``ids``: ``logprobs`` of every token after the first, nats."""

    model_path: str
    dtype: str
    ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class NullHint:
    """|teacher - student| over ``num_tokens`` unhinted tokens, nats, and what equal weights may show."""

    num_tokens: int
    mean: float
    largest: float
    mean_tolerance: float
    largest_tolerance: float
    teacher_model: str

    @property
    def passed(self) -> bool:
        """Whether equal weights explain the difference. One that is no number is none that is small."""
        return self.mean <= self.mean_tolerance and self.largest <= self.largest_tolerance

    def as_dict(self) -> dict[str, Any]:
        """For logs."""
        return {"passed": self.passed, **asdict(self)}

    def sentence(self) -> str:
        """For people."""
        return (
            f"on {self.num_tokens} unhinted tokens {self.teacher_model!r} differs from the student's first weights by "
            f"{self.mean:.2g} nats in the mean and {self.largest:.2g} at most; equal weights by at most "
            f"{self.mean_tolerance:g} and {self.largest_tolerance:g}"
        )


def tolerances(config: Config) -> tuple[float, float]:
    """Largest mean and largest single |A| for the trainer's dtype and the engine's."""
    return rounding.tolerances(config.model.dtype, config.prm.engine_dtype or config.model.dtype)


def reference(config: Config, step: int, ids: list[int], logprobs: list[float]) -> Reference | None:
    """The reference of the student's first weights: these scores at step 0, the kept ones later.

    ``None`` when training has gone on and none was kept, or one of another student or probe.
    """
    path = config.training.checkpoint_dir.parent / REFERENCE_FILE
    if step == 0:
        fresh = Reference(config.model.student_model_path, config.model.dtype, ids, logprobs)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(fresh))
        return fresh
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Reference)
    except (OSError, msgspec.MsgspecError) as error:
        structlog.get_logger().info("no null-hint control", detail=f"{path}: {error}")
        return None
    same = (kept.model_path, kept.dtype, kept.ids) == (config.model.student_model_path, config.model.dtype, ids)
    return kept if same else None


def require(found: NullHint | Unscorable) -> None:
    """Refuse to train unless the control passed (`prm.null_hint_control = "refuse"`).

    Raises:
        ConfigError: it did not.
    """
    if isinstance(found, Unscorable):
        raise ConfigError(f'prm.null_hint_control = "refuse": the control could not be run: {found.detail}')
    structlog.get_logger().info("null-hint control", **found.as_dict())
    if not found.passed:
        raise ConfigError(
            f'prm.null_hint_control = "refuse": {found.sentence()}. Either the teacher is another model than the '
            'student (then set "warn"), or its scores do not line up with the tokens'
        )


async def compare(client: PrmClient, known: Reference, limits: tuple[float, float]) -> NullHint | Unscorable:
    """Have the PRM engine score the reference's tokens, without any hint, and compare.

    Raises:
        DependencyError: it is away.
        ScoringRefusedError: it scores nothing for us.
    """
    question = Question(pack(known.ids[:1], "int32"), pack(known.ids[1:], "int32"))
    (answer,) = await client.score([question])
    if isinstance(answer, Unscorable):
        return answer
    differences = np.abs(unpack(answer.logprobs).astype(np.float64) - np.asarray(known.logprobs))
    mean, largest = float(differences.mean()), float(differences.max())
    return NullHint(len(differences), mean, largest, *limits, teacher_model=answer.model)
