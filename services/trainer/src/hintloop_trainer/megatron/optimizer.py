"""Megatron's gradient buffers and AdamW for one model: float32 gradients, and float32 weights under bfloat16."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hintloop_contract.config.schema import TrainingSection
from hintloop_contract.errors import ConfigError
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from hintloop_trainer.megatron import cpu, distributed
from hintloop_trainer.megatron.model import PolicyModel


def wrap(model: PolicyModel, training: TrainingSection) -> DistributedDataParallel:
    """The model with float32 gradient buffers that are summed over data-parallel ranks."""
    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=training.overlap_grad_reduce,
        use_distributed_optimizer=training.use_distributed_optimizer,
        average_in_collective=False,
    )
    return DistributedDataParallel(model.config, config, model)


def make(replicated: DistributedDataParallel, training: TrainingSection, dtype: torch.dtype) -> MegatronOptimizer:
    """AdamW and, if asked for, a bound on the gradient's norm; :func:`set_rate` gives each step its learning rate."""
    config = OptimizerConfig(
        optimizer="adam",
        lr=training.learning_rate,
        min_lr=training.learning_rate,
        weight_decay=training.weight_decay,
        adam_beta1=training.adam_beta1,
        adam_beta2=training.adam_beta2,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=training.use_distributed_optimizer,
        # An infinite bound clips nothing and still has the norm computed.
        clip_grad=training.grad_clip or math.inf,
    )
    with cpu.quietly():
        optimizer = get_megatron_optimizer(config, [replicated])
    for part in _distributed_parts(optimizer):
        distributed.mend(part)
    configure(optimizer, training)
    transformer: Any = replicated.config
    transformer.finalize_model_grads_func = finalize_model_grads
    transformer.grad_scale_func = optimizer.scale_loss
    if training.overlap_grad_reduce:
        # Only the last micro-batch's backward pass sends sums on their way.
        transformer.no_sync_func = replicated.no_sync
    return optimizer


def _distributed_parts(optimizer: MegatronOptimizer) -> list[DistributedOptimizer]:
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    return [part for part in parts if isinstance(part, DistributedOptimizer)]


def sharded(optimizer: MegatronOptimizer, weights: dict[str, Any], *, loading: bool) -> dict[str, Any]:
    """The optimizer's state as Megatron's checkpoints take it, beside the sharded ``weights``; any layout reads it."""
    if loading:
        for part in _distributed_parts(optimizer):
            distributed.allocate(part)
    # Put together on one data-parallel rank, in its host's memory.
    metadata = {
        "distrib_optim_sharding_type": "fully_reshardable",
        "distrib_optim_fully_reshardable_mem_efficient": True,
        # Experts divided over ranks have an optimizer of their own; names are the same with and without.
        "chained_optim_avoid_prefix": True,
    }
    parts: dict[Any, Any] = optimizer.sharded_state_dict(weights, is_loading=loading, metadata=metadata)
    counts = [_forget_groups(part) for part in _parts(parts)]
    return {"parts": parts, "steps": max(counts)}


def _parts(sharded: dict[Any, Any]) -> list[dict[str, Any]]:
    """A megatron optimizer is one or several; experts that are divided over ranks have their own."""
    return [sharded] if isinstance(next(iter(sharded)), str) else [sharded[number] for number in sorted(sharded)]


def _inner(part: dict[str, Any]) -> dict[str, Any]:
    """The part that torch's optimizer knows; float32 weights may stand beside it."""
    found: dict[str, Any] = part.get("optimizer", part)
    return found


def _forget_groups(part: dict[str, Any]) -> int:
    """Leave groups of parameters out of what is saved, as they are another layout's; the steps made until now."""
    inner = _inner(part)
    steps = [inner.get("state", {}).pop("common_step", 0), *(group.get("step", 0) for group in inner["param_groups"])]
    groups = [{name: _unwrapped(value) for name, value in group.items()} for group in inner["param_groups"]]
    inner["param_groups"] = LocalNonpersistentObject(groups)
    if "param_state_sharding_type" in part:
        part["param_state_sharding_type"] = LocalNonpersistentObject(part["param_state_sharding_type"])
    return max(int(step) for step in steps)


def _unwrapped(value: Any) -> Any:
    return value.unwrap() if isinstance(value, LocalNonpersistentObject) else value


def restore(optimizer: MegatronOptimizer, loaded: dict[str, Any], training: TrainingSection) -> None:
    """Take what :func:`sharded` described, read from a checkpoint; coefficients are as configured now."""
    inside = all(_counts_inside(inner) for inner in torch_optimizers(optimizer))
    for part in _parts(loaded["parts"]):
        inner = _inner(part)
        if inside and "state" in inner:
            inner["state"]["common_step"] = torch.tensor(float(loaded["steps"]))
        for group in inner["param_groups"]:
            # Megatron's distributed optimizer hands the count over in its groups whoever counts.
            if "step" in group or not inside:
                group["step"] = loaded["steps"]
    optimizer.load_state_dict(loaded["parts"])
    if inside:
        for group in optimizer.param_groups:
            # Nobody counts here: it would stay at what it is now.
            group.pop("step", None)
    configure(optimizer, training)


def _counts_inside(inner: torch.optim.Optimizer) -> bool:
    """Whether steps are counted beside every weight's moments, as torch does; the fused AdamW counts in its groups."""
    return isinstance(inner, torch.optim.Adam | torch.optim.AdamW)


def check_saved(directory: Path, training: TrainingSection) -> None:
    """Refuse a checkpoint of the other kind of optimizer, whose float32 weights have other names.

    Raises:
        ConfigError: `training.use_distributed_optimizer` was another then.
    """
    names = dist_checkpointing.load_tensors_metadata(str(directory))
    saved = any("optimizer.state.param." in name for name in names)
    if saved != training.use_distributed_optimizer:
        now = str(training.use_distributed_optimizer).lower()
        raise ConfigError(
            f"training.use_distributed_optimizer is {now}, but the checkpoint {directory} was made with "
            f"{str(saved).lower()}; set it back, or give another training.checkpoint_dir"
        )


def torch_optimizers(optimizer: MegatronOptimizer) -> list[torch.optim.Optimizer]:
    """The optimizers that Megatron's own stands for: theirs are the float32 weights and the moments."""
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    return [part.optimizer for part in parts if part.optimizer is not None]


@torch.no_grad()
def begin_anew(optimizer: MegatronOptimizer) -> None:
    """Take the model's weights as they are now, with moments as before any step; they are there to be saved."""
    optimizer.reload_model_params()
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if isinstance(part, DistributedOptimizer):
            distributed.allocate(part)
        elif part.optimizer is not None:
            part.init_state_fn(part.optimizer, part.config)
    for inner in torch_optimizers(optimizer):
        for entries in inner.state.values():
            _empty(entries, steps_inside=_counts_inside(inner))
        for group in inner.param_groups:
            group.update({"step": 0} if "step" in group else {})


def _empty(entries: dict[str, Any], *, steps_inside: bool) -> None:
    """Set one parameter's moments to zero; torch's own optimizers keep the number of steps among them."""
    for value in entries.values():
        if isinstance(value, torch.Tensor):
            value.zero_()
    if steps_inside:
        entries["step"] = torch.zeros(())


def configure(optimizer: MegatronOptimizer, training: TrainingSection) -> None:
    """Write the configured coefficients into every group of parameters; a loaded checkpoint brought its own.

    Megatron marks the groups (norms and biases) that do not decay.
    """
    for group in optimizer.param_groups:
        group["lr"] = group["max_lr"] = group["min_lr"] = training.learning_rate
        group["weight_decay"] = training.weight_decay * group.get("wd_mult", 1.0)
        group["betas"] = (training.adam_beta1, training.adam_beta2)
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        # Megatron takes torch's AdamW where there is no faster one, and leaves its one-pass kernel off.
        if isinstance(part.optimizer, torch.optim.AdamW):
            for group in part.optimizer.param_groups:
                group["fused"] = True


def warmed_up(training: TrainingSection, num_made: int) -> float:
    """The learning rate of the step after ``num_made`` others: linear over `lr_warmup_steps`, then constant."""
    return training.learning_rate * min(1.0, (num_made + 1) / (training.lr_warmup_steps + 1))


def num_made(optimizer: MegatronOptimizer) -> int:
    """Steps that the moments have seen; restored with them."""
    for inner in torch_optimizers(optimizer):
        # The fused one counts in no group that has no weights on this rank.
        groups = [group for group in inner.param_groups if group["params"]]
        for counter in inner.state.values() if _counts_inside(inner) else groups:
            if "step" in counter:
                return int(counter["step"])
    return 0


def set_rate(optimizer: MegatronOptimizer, training: TrainingSection) -> None:
    """Give the step to come its learning rate."""
    rate = warmed_up(training, num_made(optimizer))
    for group in optimizer.param_groups:
        group["lr"] = rate


def is_finite(replicated: DistributedDataParallel) -> bool:
    """Whether the summed gradient and its norm are finite on every rank; the same answer on all of them."""
    total = torch.zeros((), dtype=torch.float64, device=cpu.device())
    for buffer in replicated.buffers + replicated.expert_parallel_buffers:
        total += torch.linalg.vector_norm(buffer.grad_data).double().square()
    dist.all_reduce(total)
    # The norm is a float32, and one that overflows would clip every gradient to nothing.
    return bool(total.sqrt() < torch.finfo(torch.float32).max)


def learning_rate(optimizer: MegatronOptimizer) -> float:
    """The rate in force, read back from the optimizer."""
    (rate,) = {float(group["lr"]) for group in optimizer.param_groups}
    return rate


def weight_decay(optimizer: MegatronOptimizer) -> float:
    """The decay in force where there is one, read back from the optimizer."""
    return max(float(group["weight_decay"]) for group in optimizer.param_groups)
