"""Megatron's gradient buffers and AdamW for one model: float32 gradients, and float32 weights under bfloat16."""

from __future__ import annotations

import math
from typing import Any

import torch
from hintloop_contract.config.schema import TrainingSection
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer

from hintloop_trainer.megatron import cpu
from hintloop_trainer.megatron.model import PolicyModel


def wrap(model: PolicyModel) -> DistributedDataParallel:
    """The model with float32 gradient buffers that are summed over data-parallel ranks."""
    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=False,
        average_in_collective=False,
    )
    return DistributedDataParallel(model.config, config, model)


def make(replicated: DistributedDataParallel, training: TrainingSection, dtype: torch.dtype) -> MegatronOptimizer:
    """AdamW with a constant learning rate and, if asked for, a bound on the gradient's norm."""
    config = OptimizerConfig(
        optimizer="adam",
        lr=training.learning_rate,
        min_lr=training.learning_rate,
        weight_decay=training.weight_decay,
        adam_beta1=training.adam_beta1,
        adam_beta2=training.adam_beta2,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=False,
        # An infinite bound clips nothing and still has the norm computed.
        clip_grad=training.grad_clip or math.inf,
    )
    with cpu.quietly():
        optimizer = get_megatron_optimizer(config, [replicated])
    transformer: Any = replicated.config
    transformer.finalize_model_grads_func = finalize_model_grads
    transformer.grad_scale_func = optimizer.scale_loss
    return optimizer


def learning_rate(optimizer: MegatronOptimizer) -> float:
    """The rate in force, read back from the optimizer."""
    return float(optimizer.param_groups[0]["lr"])
