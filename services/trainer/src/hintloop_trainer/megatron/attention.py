"""Causal attention over sequences laid end to end in one row, or padded to one length, by torch's own kernel.

Stands in for megatron's local attention, which computes and keeps every score of a whole row, padding and other
sequences' tokens among them. On GPUs Transformer Engine does the same by the same description of the row.
Legend: S = positions, B = sequences, A, G = attention heads and key-value groups of this rank, D = head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as functional
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule


@dataclass
class PackedRow(PackedSeqParams):  # type: ignore[misc]  # megatron-core ships no types
    """Where the sequences of a row stand; ``lengths`` are their positions, in order, and make up the whole row."""

    lengths: tuple[int, ...] = ()


def packed_row(lengths: Sequence[int], multiple: int, device: torch.device) -> PackedRow:
    """The row of sequences of ``lengths`` positions, padded to a multiple of ``multiple`` by one sequence more."""
    missing = -sum(lengths) % multiple
    every = (*lengths, missing) if missing else tuple(lengths)
    starts = torch.tensor([0, *accumulate(every)], dtype=torch.int32, device=device)
    return PackedRow(
        qkv_format="thd",
        cu_seqlens_q=starts,
        cu_seqlens_kv=starts,
        max_seqlen_q=max(every),
        max_seqlen_kv=max(every),
        lengths=every,
    )


class CausalAttention(MegatronModule):  # type: ignore[misc]  # as above
    """Each sequence attends to itself alone, and to nothing behind; without parameters."""

    def __init__(self, config: TransformerConfig, softmax_scale: float | None = None, **_: Any) -> None:
        """As megatron builds any core attention; the other arguments say what this one always does."""
        super().__init__(config=config)
        self._scale = softmax_scale

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        packed_seq_params: PackedRow | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Attention's output, ``[S, A * D]`` for a packed row, ``[S, B, A * D]`` for padded sequences.

        ``query`` is ``[S, A, D]`` or ``[S, B, A, D]``, ``key`` and ``value`` alike with G heads. Padding stands on the
        right, where no token sees it; so no mask is needed, and one given (megatron's) only repeats that.
        """
        if packed_seq_params is None:
            return self._attend(query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)).transpose(0, 1)
        parts = zip(*(torch.split(item, list(packed_seq_params.lengths)) for item in (query, key, value)), strict=True)
        return torch.cat([self._attend(q[None], k[None], v[None])[0] for q, k, v in parts])

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """``[B, S, A, D]`` to ``[B, S, A * D]``."""
        found = functional.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            is_causal=True,
            scale=self._scale,
            enable_gqa=True,
        )
        return found.transpose(1, 2).flatten(2)
