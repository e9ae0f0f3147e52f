"""All that the memory of a trainer's rank depends on, read from the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hintloop_contract.config.schema import Config

from hintloop_trainer.megatron.model import Architecture

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Plan:
    """One deployment of the trainer."""

    arch: Architecture
    config: Config
    dtype_bytes: int
    """Of weights and activations."""
    world_size: int
    device: Literal["cpu", "cuda"]
    fused: bool
    """Whether layers are Transformer Engine's."""
    teaches: bool = False
    """Whether the trainer is the teacher."""

    @property
    def tp(self) -> int:
        """Tensor parallel ranks."""
        return self.config.training.tensor_model_parallel_size

    @property
    def pp(self) -> int:
        """Pipeline parallel stages."""
        return self.config.training.pipeline_model_parallel_size

    @property
    def cp(self) -> int:
        """Context parallel ranks."""
        return self.config.training.context_parallel_size

    @property
    def ep(self) -> int:
        """Expert parallel ranks."""
        return self.config.training.expert_model_parallel_size

    @property
    def model_ranks(self) -> int:
        """Processes that hold one copy of the model."""
        return self.tp * self.pp * self.cp

    @property
    def dp(self) -> int:
        """Copies of the model that share a batch."""
        return max(1, self.world_size // self.model_ranks)

    @property
    def expert_dp(self) -> int:
        """Copies of every expert."""
        return max(1, self.world_size // (self.tp * self.pp * self.ep))

    @property
    def layers(self) -> int:
        """Of one pipeline stage."""
        return self.arch.num_layers // self.pp

    @property
    def positions(self) -> int:
        """Most positions of one micro-batch, padding included."""
        training, longest = self.config.training, self.config.model.max_seq_len
        if training.micro_batch_tokens is not None:
            return max(training.micro_batch_tokens, longest)
        return training.micro_batch_size * longest

    @property
    def num_micro_batches(self) -> int:
        """Of one step on one rank, when all samples are as long as allowed."""
        samples = -(-self.config.training.train_batch_size // self.dp)
        per_batch = max(1, self.positions // self.config.model.max_seq_len)
        return max(1, -(-samples // per_batch))
