"""Sections of what turns a signal into weights: model, step, method, publishing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hintloop_contract.config.layout import LayoutKeys
from hintloop_contract.config.method import LossKeys
from hintloop_contract.config.section import NonNegativeFloat, Positive, PositiveFloat, Section, Seed

#: Learning rates below this change no float32 weight of ordinary size by the step of an AdamW optimizer.
SMALLEST_RATE = 1e-10


class ModelSection(Section):
    """The student: what is trained and served."""

    student_model_path: str = ""
    """Directory with the student's Hugging Face weights and configuration."""
    tokenizer_path: str = ""
    """Directory with its tokenizer; the student's own when empty."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Dtype of the trainer's compute and of the published weights."""
    max_seq_len: Positive = 8192
    """Longest prompt + response, in tokens; longer samples drop as `too_long`."""


class TrainingSection(LayoutKeys, LossKeys):
    """The optimizer step."""

    engine: Literal["megatron"] = "megatron"
    """Training engine."""
    train_batch_size: Positive = 16
    """Samples per optimizer step."""
    micro_batch_size: Positive = 2
    """Most sequences per forward pass (see `share_prefixes`); not counted where `micro_batch_tokens` is given."""
    micro_batch_tokens: Positive | None = None
    """Most tokens per forward pass, padding included; a longer sequence goes alone. Null: by `micro_batch_size`."""
    packing: bool = True
    """Sequences of a forward pass end to end in one row, without padding; false pads them to the longest."""
    share_prefixes: bool = True
    """A turn whose tokens a later turn of the same step begins with is computed once, as part of that one's sequence.
    Losses and gradients stay the same but for rounding."""
    num_epochs: Positive = 1
    """Passes over each collection of `rollout_batch_size` samples."""
    learning_rate: PositiveFloat = 1e-6
    """AdamW learning rate; constant after `lr_warmup_steps`."""
    lr_warmup_steps: Annotated[int, Field(ge=0)] = 0
    """First steps of AdamW's moments, over which the rate rises linearly: the k-th of n is made at k / (n + 1) of
    `learning_rate`. AdamW's first steps move every weight by the whole rate, however little a gradient says. Counted on
    over restarts, and anew where training goes back to earlier weights without moments."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW decoupled weight decay."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW beta 1."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """AdamW beta 2."""
    grad_clip: NonNegativeFloat = 1.0
    """Largest global gradient norm; 0 switches clipping off."""
    max_staleness_steps: Positive = 4
    """Samples made by weights more than this many optimizer steps behind the released ones drop as `stale`."""
    allow_mixed_version: bool = False
    """Train answers during which the weights changed."""
    allow_constrained: bool = True
    """Train turns made under a grammar, forced tool or penalty (without TIS); false drops them."""
    save_interval: Positive = 100
    """Steps between checkpoints; samples are acknowledged when a checkpoint holds them."""
    keep_checkpoints: Positive = 2
    """Newest checkpoints kept."""
    async_save: bool = True
    """Go on training while a checkpoint's files are written. What training changes meanwhile is held in memory twice:
    at most the weights and the optimizer's state once more."""
    checkpoint_dir: Path = Path(".hintloop/checkpoints")
    """Where checkpoints are written."""
    max_steps: Positive | None = None
    """Stop after this many optimizer steps."""
    seed: Seed = 1234
    """Seed of the trainer."""
    memory_check: Literal["warn", "refuse", "off"] = "warn"
    """What follows when the estimate at start says that samples of `model.max_seq_len` do not fit: a warning, or no
    training. `off` makes no estimate."""

    @property
    def most_unacknowledged(self) -> int:
        """Most samples trained and not acknowledged: those of the checkpoint being written, and of the next."""
        return self.save_interval * self.train_batch_size * (2 if self.async_save else 1)

    @model_validator(mode="after")
    def _rate_that_moves(self) -> TrainingSection:
        first = self.learning_rate / (self.lr_warmup_steps + 1)
        if self.lr_warmup_steps and first < SMALLEST_RATE:
            raise ValueError(
                f"training.lr_warmup_steps {self.lr_warmup_steps} begins at a learning rate of {first:.2g}, which "
                "moves no weight; give fewer, or a higher training.learning_rate"
            )
        return self

    @model_validator(mode="after")
    def _whole_rows(self) -> TrainingSection:
        if self.packing and self.context_parallel_size > 1:
            raise ValueError(
                f"training.context_parallel_size {self.context_parallel_size} divides padded samples, not packed rows; "
                "set training.packing = false"
            )
        return self


class PublishingSection(Section):
    """Weights to the engines."""

    weights_dir: Path = Path(".hintloop/weights")
    """Volume mounted at the same path for trainer and engines."""
    transport: Literal["disk", "process_group", "none"] = "disk"
    """How running engines get new weights: they read `weights_dir`, or receive them over gloo or NCCL; `none` writes
    them to `weights_dir` and tells no engine, for training offline."""
    keep_versions: Positive = 2
    """Newest versions kept, the current one among them; those that an engine reports stay as well."""
    timeout_s: PositiveFloat = 120.0
    """Longest single call to an engine, and longest wait for it in a process group."""
    probe_tolerance: PositiveFloat | None = None
    """Largest difference between engine and trainer on the probe's mean log-probability; by dtype when null."""
    reconcile_interval_s: PositiveFloat = 3.0
    """How often engines are compared with the current version."""
