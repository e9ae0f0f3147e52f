"""Log-probabilities of given tokens from hidden states, over a vocabulary that is split across ranks.

Owns the head and everything behind it. Nothing here shifts: row n holds the hidden state of the position
*before* the token it is asked about; :mod:`hintloop_trainer.batch` pairs them, and nothing else does.
Rows go through the head in chunks, and a chunk's logits are computed anew in the backward pass, so float32
logits exist for one chunk at a time.
Legend: N = trained tokens, H = hidden size, V = this rank's vocabulary rows, K = candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region
from torch.utils.checkpoint import checkpoint

from hintloop_trainer.megatron.model import PolicyModel

#: Float32 logits that may exist at once, in bytes.
CHUNK_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Scores:
    """What the model says of N tokens; all float32."""

    logprobs_N: torch.Tensor
    """At temperature 1, nats, differentiable."""
    tempered_N: torch.Tensor
    """At each token's sampling temperature, nats, differentiable."""
    entropy_N: torch.Tensor
    """Of the distribution at temperature 1, nats; differentiable when asked for."""
    candidates_NK: torch.Tensor | None
    """Of the asked candidates at temperature 1, nats, differentiable."""


def score(
    model: PolicyModel,
    hidden_NH: torch.Tensor,
    targets_N: torch.Tensor,
    temperatures_N: torch.Tensor,
    vocab_size: int,
    candidates_NK: torch.Tensor | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    differentiable_entropy: bool = False,
) -> Scores:
    """Score ``targets_N`` (int64 ids) given the hidden states before them.

    ``temperatures_N`` are float32 and above 0. Collective over tensor-parallel ranks; every rank gets the
    same scores.
    """
    rows = max(1, chunk_bytes // (4 * _local_vocab(model)))
    starts = range(0, max(len(targets_N), 1), rows)
    recompute = torch.is_grad_enabled() and len(starts) > 1
    pieces: list[tuple[torch.Tensor, ...]] = []
    for start in starts:
        span = slice(start, start + rows)
        ids_NK = None if candidates_NK is None else candidates_NK[span]
        asked = (targets_N[span], temperatures_N[span], ids_NK)
        arguments = (model, hidden_NH[span], *asked, vocab_size, differentiable_entropy)
        pieces.append(checkpoint(_score, *arguments, use_reentrant=False) if recompute else _score(*arguments))
    logprobs, tempered, entropy, *candidates = (torch.cat(column) for column in zip(*pieces, strict=True))
    return Scores(logprobs, tempered, entropy, candidates[0] if candidates else None)


def _local_vocab(model: PolicyModel) -> int:
    rows: int = model.output_layer.output_size_per_partition
    return rows


def _score(
    model: PolicyModel,
    hidden_NH: torch.Tensor,
    targets_N: torch.Tensor,
    temperatures_N: torch.Tensor,
    candidates_NK: torch.Tensor | None,
    vocab_size: int,
    differentiable_entropy: bool,
) -> tuple[torch.Tensor, ...]:
    logits_NV = local_logits(model, hidden_NH, vocab_size)
    total_N = log_normaliser(logits_NV)
    chosen_N = pick(logits_NV, targets_N[:, None]).squeeze(-1)
    logprobs_N = chosen_N - total_N
    if bool((temperatures_N == 1.0).all()):
        tempered_N = logprobs_N
    else:
        tempered_N = chosen_N / temperatures_N - log_normaliser(logits_NV / temperatures_N[:, None])
    if differentiable_entropy:
        entropy_N: torch.Tensor = _Entropy.apply(logits_NV, total_N.detach())  # type: ignore[no-untyped-call]  # torch
    else:
        entropy_N = entropy(logits_NV.detach(), total_N.detach())
    if candidates_NK is None:
        return logprobs_N, tempered_N, entropy_N
    return logprobs_N, tempered_N, entropy_N, pick(logits_NV, candidates_NK) - total_N[:, None]


def local_logits(model: PolicyModel, hidden_NH: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """This rank's logits ``[N, V]``, float32 or wider; rows that only pad the vocabulary are minus infinity."""
    raw_NV = model.head(hidden_NH)
    logits_NV: torch.Tensor = raw_NV.to(torch.promote_types(raw_NV.dtype, torch.float32))
    num_local = logits_NV.shape[-1]
    num_real = vocab_size - parallel_state.get_tensor_model_parallel_rank() * num_local
    if num_real >= num_local:
        return logits_NV
    padding = torch.arange(num_local, device=logits_NV.device) >= num_real
    return logits_NV.masked_fill(padding, float("-inf"))


def log_normaliser(logits_NV: torch.Tensor) -> torch.Tensor:
    """``logsumexp`` over the whole vocabulary, ``[N]``, differentiable."""
    local_N = torch.logsumexp(logits_NV, dim=-1)
    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        return local_N
    largest_N = local_N.detach().clone()
    dist.all_reduce(largest_N, op=dist.ReduceOp.MAX, group=parallel_state.get_tensor_model_parallel_group())
    # Sums of local sums: each rank's gradient is its own share of the mass.
    mass_N = _reduced((local_N - largest_N).exp())
    return largest_N + mass_N.log()


def _reduced(values: torch.Tensor) -> torch.Tensor:
    """Sum over tensor-parallel ranks; the gradient passes through to each rank's own share."""
    group = parallel_state.get_tensor_model_parallel_group()
    # The reduction is in place, and what it would overwrite may be needed for the gradient (as exp's result is).
    total: torch.Tensor = reduce_from_tensor_model_parallel_region(values.clone(), group=group)
    return total


def pick(logits_NV: torch.Tensor, ids_NK: torch.Tensor) -> torch.Tensor:
    """Logits ``[N, K]`` of global ids, wherever they are held; differentiable."""
    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        return logits_NV.gather(-1, ids_NK)
    num_local = logits_NV.shape[-1]
    local_NK = ids_NK - parallel_state.get_tensor_model_parallel_rank() * num_local
    elsewhere_NK = (local_NK < 0) | (local_NK >= num_local)
    found_NK = logits_NV.gather(-1, local_NK.masked_fill(elsewhere_NK, 0)).masked_fill(elsewhere_NK, 0.0)
    return _reduced(found_NK)


@torch.no_grad()
def entropy(logits_NV: torch.Tensor, total_N: torch.Tensor) -> torch.Tensor:
    """Entropy ``[N]`` in nats, from logits and their log-normaliser."""
    probabilities_NV = (logits_NV - total_N[:, None]).exp_()
    # Padding has probability 0 and logit minus infinity, whose product is not a number.
    expected_N = (probabilities_NV * logits_NV.clamp_min(-1e30)).sum(-1)
    return total_N - _reduced(expected_N)


class _Entropy(torch.autograd.Function):
    """Entropy ``[N]`` with a gradient: ``dH/dlogit_v = -p_v (log p_v + H)``, each rank's own share of it.

    Both ``H`` and the log-normaliser are known on every rank, so the backward pass needs no communication.
    """

    @staticmethod
    def forward(context: Any, logits_NV: torch.Tensor, total_N: torch.Tensor) -> torch.Tensor:
        entropy_N = entropy(logits_NV, total_N)
        context.save_for_backward(logits_NV, total_N, entropy_N)
        return entropy_N

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        logits_NV, total_N, entropy_N = context.saved_tensors
        # The clamp keeps 0 * -inf from the rows that only pad the vocabulary.
        logprobs_NV = (logits_NV - total_N[:, None]).clamp_min(-1e30)
        surprise_NV = logprobs_NV.exp() * (logprobs_NV + entropy_N[:, None])
        return -gradients[0][:, None] * surprise_NV, None
