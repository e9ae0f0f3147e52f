"""How positions are divided over ranks and come back in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hintloop_trainer.megatron import sequence


def config(tensor: int = 1, context: int = 1, *, sequence_parallel: bool = False) -> Any:
    return SimpleNamespace(
        tensor_model_parallel_size=tensor, context_parallel_size=context, sequence_parallel=sequence_parallel
    )


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_context_ranks_share_all_positions_and_weigh_the_same(num_ranks: int) -> None:
    length = 8 * num_ranks
    shares = [sequence.own_positions(length, rank, num_ranks) for rank in range(num_ranks)]
    assert sorted(torch.cat(shares).tolist()) == list(range(length))
    # Under a causal mask position p attends to p + 1 positions.
    assert len({int((share + 1).sum()) for share in shares}) == 1
    values = torch.randn(length)
    laid = torch.cat([values[share] for share in shares])
    assert torch.equal(laid[sequence.in_order(length, num_ranks)], values)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [(config(), 1), (config(2), 1), (config(2, sequence_parallel=True), 2), (config(2, 2, sequence_parallel=True), 8)],
)
def test_positions_are_padded_to_what_ranks_can_share(sizes: Any, expected: int) -> None:
    assert sequence.multiple(sizes) == expected


def test_what_is_padded_is_seen_by_no_real_position() -> None:
    ids, positions = torch.arange(1, 6)[None], torch.arange(5)[None]
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)[None, None]
    padded_ids, padded_positions, padded_mask = sequence.divide(config(4, sequence_parallel=True), ids, positions, mask)
    assert padded_ids.tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]] and padded_positions.shape == (1, 8)
    assert padded_mask is not None
    assert torch.equal(padded_mask[..., :5, :5], mask)
    assert bool(padded_mask[..., :5, 5:].all())
    assert not bool(padded_mask.all(dim=-1).any())
