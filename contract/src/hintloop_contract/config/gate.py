"""Section `[gate]`: what weights have to show before engines that serve agents get them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from hintloop_contract.config.section import (
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Section,
    Seed,
    http_address,
)

Share = Annotated[float, Field(ge=0, le=1)]


class GateSection(Section):
    """The release gate: probe prompts are answered by the new weights before anyone else is.

    A margin is passed when the mean difference over the prompts is beyond it *and* beyond `standard_errors` standard
    errors of that mean, paired by prompt. Margins are against the last released version; against the student's first
    weights they are `base_factor` times as wide.
    """

    enabled: bool = True
    """Look at weights before they are released."""
    probe_file: Path | None = None
    """JSON lines of probe prompts instead of the built-in ones; see the trainer's README for their form."""
    temperature: NonNegativeFloat | None = None
    """Sampling temperature of the probe's answers; 0 is greedy, null is `rollout.temperature`."""
    max_new_tokens: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Longest probe answer, tokens; one that has not ended by then counts as not answered."""
    seed: Seed = 0
    """Seed of the probe's sampling: the same for every version, so that like weights give like answers."""
    batch_size: Positive = 32
    """Most probe prompts answered at once."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the candidate and the first weights answer: the leading rank's device when there is one, else the CPU."""
    engine_url: str = ""
    """An engine that serves no agent and answers the probe instead; of the dialect `rollout.engine`. Empty: none."""
    timeout_s: PositiveFloat = 600.0
    """Longest look at one candidate; one that takes longer is tried again."""
    patience: Positive = 2
    """Releases held back in a row after which the trainer goes back to the last released version."""
    standard_errors: NonNegativeFloat = 2.0
    """How many standard errors a difference must be beyond, besides its margin."""
    base_factor: Annotated[float, Field(ge=1)] = 3.0
    """How much wider the margins are against the student's first weights."""
    answer_rate_drop: Share | None = 0.25
    """Most that the share of answers that end within `max_new_tokens` may fall; null: not looked at."""
    length_ratio: Annotated[float, Field(gt=1)] | None = 2.0
    """Most that answers may become longer or shorter, as a ratio (its power `base_factor` against the first weights);
    null: not looked at."""
    repetition_rise: Share | None = 0.2
    """Most that the share of repeated 3-grams in an answer may rise; null: not looked at."""
    entropy_change: PositiveFloat | None = 1.0
    """Most that the entropy per token may rise or fall, nats; null: not looked at."""
    base_nll_rise: PositiveFloat | None = 0.75
    """Most that the first weights' negative log-likelihood of the answers may rise, nats per token; null: not looked
    at."""
    score_drop: Share | None = 0.25
    """Most that the share of answers with what their prompt expects may fall; null: not looked at."""

    @field_validator("engine_url")
    @classmethod
    def _address(cls, value: str) -> str:
        return http_address(value) if value else value
