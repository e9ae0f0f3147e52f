"""What Megatron's distributed optimizer needs around torch's AdamW to write and read checkpoints.

Megatron expects Transformer Engine's or Apex's AdamW there, which count steps once. torch's counts them in a tensor
beside each parameter's moments, which is no part of the sharded state.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.optimizer import distrib_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer


def mend(optimizer: DistributedOptimizer) -> None:
    """Keep the count of steps out of what is sharded, and one for each parameter after loading."""
    _keep_padding(optimizer)
    if distrib_optimizer.HAVE_APEX_OR_TE:
        return
    read, load = optimizer._get_main_param_and_optimizer_states, optimizer.load_state_dict

    def tensors(parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in read(parameter).items() if name != "step"}

    @torch.no_grad()
    def write(parameter: torch.nn.Parameter, values: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors(parameter).items():
            tensor.copy_(values[name])

    def load_counted(state: dict[str, Any]) -> None:
        load(state)
        # Megatron gives all parameters the same tensor, which each of them would count up.
        for found in optimizer.optimizer.state.values():
            found["step"] = found["step"].clone()

    optimizer._get_main_param_and_optimizer_states = tensors
    optimizer._set_main_param_and_optimizer_states = write
    optimizer.load_state_dict = load_counted


def _keep_padding(optimizer: DistributedOptimizer) -> None:
    """Have checkpoints put buckets together where they stand in their buffer.

    Megatron leaves out the padding behind each bucket and then looks for parameters where they are with it, so what
    follows a padded bucket would be saved from the wrong place, and the last parameter as zeros.
    """
    for buffer in optimizer.buffers:
        buffer.numel_unpadded = buffer.numel
        for bucket in buffer.buckets:
            bucket.numel_unpadded = bucket.grad_data.numel()


def allocate(optimizer: DistributedOptimizer) -> None:
    """Give moments to parameters that have none yet, so that there is something to load into."""
    if distrib_optimizer.HAVE_APEX_OR_TE:
        return
    for group in optimizer.optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.optimizer.state[parameter]:
                optimizer.optimizer.state[parameter] = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
