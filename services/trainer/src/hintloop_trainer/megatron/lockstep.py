"""Ranks that share the experts of a mixture meet in every layer: all of them go through the model equally often.

And every rank at least once, for megatron's schedules do: one without samples takes part in what comes after them.

Legend: B = sequences, S = positions, H = hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from hintloop_trainer.megatron import cpu
from hintloop_trainer.megatron.parallel import Layout

#: ``step(iterator, network)`` of Megatron's schedules: takes an item; gives hidden states and what makes a loss of them
Step = Callable[[Iterator[Any], Any], tuple[Any, Any]]


def evened(work: list[Any], step: Step, forward: Callable[..., Any], layout: Layout) -> tuple[list[Any], Step]:
    """``work`` with as many items as the rank with the most has where ranks share experts, else with one at least, and
    a ``step`` that passes through those added.

    ``forward(network, ids_BS, positions_BS)`` gives hidden states. An item added has a loss of 0 over no tokens, and
    ``None`` for an output. Collective over expert-parallel ranks.
    """
    count = max(1, len(work))
    if layout.ep_size > 1:
        most = torch.tensor(count, device=cpu.device())
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=parallel_state.get_expert_model_parallel_group())
        count = int(most.item())
    if count == len(work):
        return work, step
    ids_BS = torch.zeros(1, 2, dtype=torch.int64, device=cpu.device())

    def nothing(hidden_SBH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return hidden_SBH.sum() * 0.0, torch.zeros((), dtype=torch.int, device=hidden_SBH.device), None

    def stepping(items: Iterator[Any], network: Any) -> tuple[Any, Any]:
        item = next(items)
        if item is None:
            return forward(network, ids_BS, torch.arange(2, device=cpu.device())[None]), nothing
        return step(iter([item]), network)

    return [*work, *[None] * (count - len(work))], stepping
