"""Keys that say what is learned: the advantage section, and those of `[training]` that shape the loss."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator, model_validator

from hintloop_contract.config.section import NonNegativeFloat, Positive, PositiveFloat, Section


class LossKeys(Section):
    """Keys of `[training]` around the loss; `TrainingSection` inherits them."""

    ppo_clip_epsilon: PositiveFloat = 0.2
    """PPO clip on both sides, unless `ppo_clip_epsilon_high` is given."""
    ppo_clip_epsilon_high: PositiveFloat | None = None
    """Upper PPO clip."""
    kl_coef: NonNegativeFloat = 0.0
    """Coefficient of the KL to the student's first weights, added to the loss; not 0 under OPD is refused unless
    `force_kl`. Costs a copy of the model and one more forward pass a collection."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How that KL is estimated from the sampled tokens; with d = log of reference over student: -d, d^2 / 2, or
    exp(d) - d - 1."""
    force_kl: bool = False
    """Accept `kl_coef` under OPD, whose teacher term already is a KL."""
    entropy_coef: NonNegativeFloat = 0.0
    """Coefficient of the entropy bonus, subtracted from the loss; holds the student's distribution open."""
    loss_reduction: Literal["token_mean", "sample_mean"] = "token_mean"
    """Divide by the trained tokens, or by the samples, of the whole batch."""
    is_correction: Literal["truncate", "mask", "off"] = "truncate"
    """Importance sampling against the engine's policy: weights above `tis_cap` are cut to it (`truncate`, TIS), or
    tokens whose weight is above `tis_cap` or below `tis_floor` count nothing (`mask`, MIS), or all weights are 1."""
    tis_cap: PositiveFloat | None = 2.0
    """Largest importance weight; null switches the correction off."""
    tis_floor: NonNegativeFloat = 0.0
    """Smallest importance weight that `mask` lets count."""
    use_custom_loss: bool = False
    """False says that no path is set here; the advantage section's still counts."""
    custom_loss_path: str | None = None
    """Python file that defines `compute_loss`."""

    @model_validator(mode="after")
    def _importance(self) -> LossKeys:
        if self.tis_floor and self.is_correction != "mask":
            raise ValueError(
                f"tis_floor {self.tis_floor} acts only with is_correction mask, which is {self.is_correction!r}; set "
                "mask, or remove tis_floor"
            )
        if self.is_correction == "mask" and self.tis_cap is None:
            raise ValueError("is_correction mask needs tis_cap, the weight above which a token is left out; set 2.0")
        if self.tis_cap is not None and self.tis_floor >= self.tis_cap:
            raise ValueError(
                f"tis_floor {self.tis_floor} is not below tis_cap {self.tis_cap}: no token could count; lower it"
            )
        return self


class AdvantageSection(Section):
    """The learning method."""

    estimator: Literal["on_policy_distillation", "grpo", "combine"] = "on_policy_distillation"
    """OPD, binary RL, or both."""
    gamma: float = 1.0
    """Must be 1.0: a turn is one action."""
    lam: float = 1.0
    """Must be 1.0: there is no value model."""
    w_rl: NonNegativeFloat = 1.0
    """Weight of the score under `combine`."""
    w_opd: NonNegativeFloat = 1.0
    """Weight of the teacher term under `combine`."""
    group_normalisation: bool = False
    """Replace a score by its distance from the mean score of the same prompt's answers in the step, in standard
    deviations; refused at `group_size` 1."""
    group_size: Positive = 1
    """Fewest answers to the very same prompt in one step that are normalised against one another; smaller groups keep
    their scores. A passive rollout trains one answer a prompt, unless several agents send the same one."""
    custom_loss_function_path: str | None = None
    """Python file that defines `compute_loss`."""

    @field_validator("gamma", "lam")
    @classmethod
    def _one(cls, value: float) -> float:
        if value != 1.0:
            raise ValueError(
                f"{value} is refused: each turn is one action with its own signal, so there is nothing to discount "
                "and no value model to bootstrap from; set 1.0"
            )
        return value

    @model_validator(mode="after")
    def _weights(self) -> AdvantageSection:
        if self.estimator == "combine":
            if not self.w_rl and not self.w_opd:
                raise ValueError("w_rl and w_opd are both 0, so that every advantage would be 0; raise one of them")
            return self
        for name in ("w_rl", "w_opd"):
            if name in self.model_fields_set and getattr(self, name) != 1.0:
                raise ValueError(
                    f"{name} {getattr(self, name)} has no effect under estimator {self.estimator!r}; set estimator = "
                    f'"combine", or remove {name}'
                )
        return self

    @model_validator(mode="after")
    def _groups(self) -> AdvantageSection:
        if not self.group_normalisation:
            if self.group_size > 1:
                raise ValueError(
                    f"group_size {self.group_size} has no effect without group_normalisation; set it true, or remove "
                    "group_size"
                )
            return self
        if self.estimator == "on_policy_distillation":
            raise ValueError(
                'group_normalisation is refused under on_policy_distillation, which uses no scores; set estimator = "'
                'grpo" or "combine", or group_normalisation = false'
            )
        if self.group_size == 1:
            raise ValueError(
                "group_normalisation is refused at group_size 1: the only answer to a prompt is its own mean, so every "
                "advantage would be 0 and nothing would be learned. Set false; or, where agents send the very same "
                "prompt several times, set group_size to how many answers there are at least in a step"
            )
        return self
