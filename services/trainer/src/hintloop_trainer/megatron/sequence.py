"""Positions divided over ranks, and whole again: context parallel (all of a layer) and sequence parallel (norms).

The model is given whole sequences and gives whole hidden states; how they are divided meanwhile is known here alone.
Under context parallelism a rank has one piece from the front and its mirror image from the back, so that causal
attention weighs the same on all (as Transformer Engine expects it).
Legend: B = sequences, S = positions, H = hidden size, C = context-parallel ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer import TransformerConfig


def multiple(config: TransformerConfig) -> int:
    """What the number of positions must be a multiple of."""
    pieces = 2 * config.context_parallel_size if config.context_parallel_size > 1 else 1
    return pieces * (config.tensor_model_parallel_size if config.sequence_parallel else 1)


def own_positions(length: int, rank: int, num_ranks: int) -> torch.Tensor:
    """Positions of a context-parallel rank, int64 ``[S / C]``."""
    pieces = torch.arange(length).chunk(2 * num_ranks)
    return torch.cat([pieces[rank], pieces[2 * num_ranks - 1 - rank]])


def in_order(length: int, num_ranks: int) -> torch.Tensor:
    """Where each position is found once every rank's own are laid end to end, int64 ``[S]``."""
    return torch.argsort(torch.cat([own_positions(length, rank, num_ranks) for rank in range(num_ranks)]))


def divide(
    config: TransformerConfig, ids_BS: torch.Tensor, positions_BS: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """This context-parallel rank's ids and positions, padded on the right so that ranks have equally many.

    Under a causal mask no real position sees the padding; a mask given, true where attention is not allowed, is
    padded to match.
    """
    missing = -ids_BS.shape[1] % multiple(config)
    if missing:
        ids_BS, positions_BS = functional.pad(ids_BS, (0, missing)), functional.pad(positions_BS, (0, missing))
        if mask is not None:
            mask = functional.pad(mask, (0, missing, 0, missing), value=True)
            # A row that may see nothing has no softmax.
            mask[..., -missing:, 0] = False
    if config.context_parallel_size > 1:
        rank = parallel_state.get_context_parallel_rank()
        own = own_positions(ids_BS.shape[1], rank, config.context_parallel_size).to(ids_BS.device)
        ids_BS, positions_BS = ids_BS[:, own], positions_BS[:, own]
    return ids_BS, positions_BS, mask


def join(config: TransformerConfig, hidden_SBH: torch.Tensor, length: int) -> torch.Tensor:
    """Hidden states of all ``length`` positions from those of this rank; differentiable."""
    if config.sequence_parallel:
        # What follows is the same on every tensor-parallel rank, and so is its gradient: each takes its part.
        hidden_SBH = gather_from_sequence_parallel_region(hidden_SBH, tensor_parallel_output_grad=False)
    if config.context_parallel_size > 1:
        hidden_SBH = _gather_context(hidden_SBH, config.context_parallel_size)
    return hidden_SBH[:length]


def _gather_context(hidden_SBH: torch.Tensor, num_ranks: int) -> torch.Tensor:
    """All ranks' positions in order; every rank evaluates the whole loss, so gradients are summed over ranks.

    That makes them ``num_ranks`` times too large, as the head's own become when megatron sums them over data- and
    context-parallel ranks, and as the count of tokens is that all of them are divided by.
    """
    whole: torch.Tensor = gather_from_sequence_parallel_region(
        hidden_SBH, tensor_parallel_output_grad=True, group=parallel_state.get_context_parallel_group()
    )
    return whole[in_order(whole.shape[0], num_ranks).to(whole.device)]
