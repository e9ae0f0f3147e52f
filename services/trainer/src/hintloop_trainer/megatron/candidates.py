"""The likeliest tokens at given positions, over a vocabulary that is split across ranks; nothing is differentiable.

Legend: N = rows, H = hidden size, V = this rank's vocabulary rows, K = candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from hintloop_trainer.megatron.logprobs import CHUNK_BYTES, local_logits, log_normaliser
from hintloop_trainer.megatron.model import PolicyModel

#: A tail lighter than float32 can tell from none has this log-mass; it stands for "at most 2^-24".
EMPTY_TAIL = math.log(2.0**-24)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The K likeliest tokens of N rows: ``ids_NK`` int64, ``logprobs_NK`` float32 at temperature 1, in order."""

    ids_NK: torch.Tensor
    logprobs_NK: torch.Tensor


@torch.no_grad()
def likeliest(
    model: PolicyModel,
    hidden_NH: torch.Tensor,
    vocab_size: int,
    top_k: int,
    *,
    num_tokens: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Candidates:
    """The ``top_k`` likeliest tokens behind each row. Collective over tensor-parallel ranks; all get the same.

    ``num_tokens``: ids from it on are in no tokenizer and are never chosen, though their mass counts. ``top_k`` is at
    most that many.
    """
    rows = max(1, chunk_bytes // (4 * model.output_layer.output_size_per_partition))
    below = vocab_size if num_tokens is None else num_tokens
    pieces = [
        _likeliest(model, hidden_NH[at : at + rows], vocab_size, top_k, below) for at in range(0, len(hidden_NH), rows)
    ]
    return Candidates(torch.cat([piece.ids_NK for piece in pieces]), torch.cat([piece.logprobs_NK for piece in pieces]))


def _likeliest(model: PolicyModel, hidden_NH: torch.Tensor, vocab_size: int, top_k: int, below: int) -> Candidates:
    logits_NV = local_logits(model, hidden_NH, vocab_size)
    total_N = log_normaliser(logits_NV)
    num_named = below - parallel_state.get_tensor_model_parallel_rank() * logits_NV.shape[-1]
    if num_named < logits_NV.shape[-1]:
        logits_NV[:, max(0, num_named) :] = -math.inf
    best_NK, ids_NK = logits_NV.topk(min(top_k, logits_NV.shape[-1]), dim=-1)
    if parallel_state.get_tensor_model_parallel_world_size() > 1:
        ids_NK = ids_NK + parallel_state.get_tensor_model_parallel_rank() * logits_NV.shape[-1]
        everyones_NX, ids_NX = _gathered(best_NK), _gathered(ids_NK)
        best_NK, at_NK = everyones_NX.topk(top_k, dim=-1)
        ids_NK = ids_NX.gather(-1, at_NK)
    return Candidates(ids_NK, best_NK - total_N[:, None])


def _gathered(values: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(values) for _ in range(parallel_state.get_tensor_model_parallel_world_size())]
    dist.all_gather(parts, values.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
    return torch.cat(parts, dim=-1)


def log_rest(logprobs_NK: torch.Tensor) -> torch.Tensor:
    """Log of the mass outside the candidates, float32 ``[N]``, float64 inside; never below :data:`EMPTY_TAIL`."""
    covered_N = torch.logsumexp(logprobs_NK.double(), dim=-1).clamp(max=0.0)
    return (-torch.expm1(covered_N)).clamp(min=math.exp(EMPTY_TAIL)).log().float()
