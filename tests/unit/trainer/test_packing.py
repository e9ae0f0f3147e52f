"""Samples end to end in one row against the same samples padded; micro-batches within a budget of tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as functional
from hintloop_contract.config.schema import TrainingSection
from hintloop_trainer import batch as batching
from hintloop_trainer import chains
from hintloop_trainer.learner import Learner
from hintloop_trainer.megatron import attention, cpu, logprobs, weights
from hintloop_trainer.megatron.mlp import swiglu
from hintloop_trainer.megatron.norm import RootMeanSquareNorm
from hintloop_trainer.megatron.parallel import Layout
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from .conftest import VOCAB, build_learner, make_sample

CPU = torch.device("cpu")
LIMITS = batching.Limits(packed=True, num_sequences=5, num_tokens=None)
SHAPES = [(3, 2), (9, 4), (1, 7), (20, 1), (6, 6)]
SAMPLES = [make_sample(turn, num_prompt=p, num_response=r) for turn, (p, r) in enumerate(SHAPES)]


def example(turn: int, num_tokens: int) -> batching.Example:
    return batching.read_example(make_sample(turn, num_prompt=num_tokens - 1, num_response=1), VOCAB)


def make_learner(directory: Path, layout: Layout, **training: Any) -> Learner:
    keys = {"train_batch_size": 5, "max_staleness_steps": 8, "grad_clip": 0.0, **training}
    return build_learner(directory, layout, rollout={"rollout_batch_size": 5}, training=keys)


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for place in weights.places(learner.model, learner.arch, learner.layout):
        pieces = weights.part(place.parameter.main_grad, place.cut, learner.arch)
        found.update(zip(place.parts, pieces, strict=True))
    return found


@pytest.mark.parametrize(("family", "tied"), [("qwen3", True), ("llama", False), ("qwen2", False)])
def test_packed_rows_make_the_step_that_padded_ones_make(
    student: Callable[..., Path], layout: Layout, family: str, tied: bool
) -> None:
    directory = student(family, tied=tied)
    encoded = [msgspec.msgpack.encode(sample) for sample in SAMPLES]
    found = []
    for training in ({"packing": False, "micro_batch_size": 5}, {"micro_batch_size": 5}, {"micro_batch_tokens": 26}):
        learner = make_learner(directory, layout, **training)
        learner.begin([encoded])
        (plan,) = learner._plans
        old = learner._score_before(plan.batches)
        by_turn = {
            part.turn_id: values
            for batch, scores in zip(plan.batches, old, strict=True)
            for part, values in zip(
                batch.examples, scores.logprobs_N.split([e.num_trained for e in batch.examples]), strict=True
            )
        }
        result = learner.step(0)
        found.append((len(plan.batches), result, by_turn, gradients(learner)))
    padded, *others = found
    assert padded[1].work.num_padding > 0
    assert [count for count, *_ in others] == [1, 3]
    for _, result, by_turn, grads in others:
        assert result.work.num_padding == 0
        assert result.loss == pytest.approx(padded[1].loss, rel=1e-5)
        assert result.grad_norm == pytest.approx(padded[1].grad_norm, rel=1e-5)
        for turn, values in padded[2].items():
            torch.testing.assert_close(by_turn[turn], values, rtol=1e-5, atol=1e-5)
        for name, gradient in padded[3].items():
            torch.testing.assert_close(grads[name], gradient, rtol=1e-5, atol=1e-5, msg=name)


def test_no_sequence_of_a_row_sees_another(student: Callable[..., Path], layout: Layout) -> None:
    learner = make_learner(student("qwen3"), layout)
    others = [make_sample(turn, num_prompt=p, num_response=r) for turn, (p, r) in enumerate(SHAPES, 100)]
    rows = []
    for neighbours in (SAMPLES, others):
        made = [batching.read_example(s, VOCAB) for s in (neighbours[0], SAMPLES[1], neighbours[2])]
        batch = batching.collate(chains.alone(made), packed=True, candidates=False, device=CPU)
        with torch.no_grad(), cpu.quietly():
            hidden_NH = learner._hidden(learner.replicated, batch).flatten(0, 1)[batch.rows_N]
        rows.append(hidden_NH[batch.sample_N == 1])
    assert torch.equal(rows[0], rows[1])


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attention_of_a_row_is_that_of_each_sequence_under_a_mask(groups: int) -> None:
    torch.manual_seed(0)
    lengths, heads, size = (3, 1, 6), 4, 8
    row = attention.packed_row(lengths, 4, CPU)
    assert row.lengths == (3, 1, 6, 2) and row.cu_seqlens_q.tolist() == [0, 3, 4, 10, 12] and row.max_seqlen_q == 6
    query = torch.randn(12, heads, size, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(12, groups, size, dtype=torch.float64, requires_grad=True) for _ in range(2))
    module = attention.CausalAttention.__new__(attention.CausalAttention)
    torch.nn.Module.__init__(module)
    module._scale = None
    found = module.forward(query, key, value, None, packed_seq_params=row)
    owner = torch.repeat_interleave(torch.arange(4), torch.tensor(row.lengths))
    allowed = (owner[:, None] == owner[None, :]) & torch.ones(12, 12, dtype=torch.bool).tril()
    keys, values = (item.repeat_interleave(heads // groups, dim=1) for item in (key, value))
    scores = torch.einsum("sad,tad->ast", query, keys) / size**0.5
    expected = torch.einsum("ast,tad->sad", scores.masked_fill(~allowed, -torch.inf).softmax(-1), values).flatten(1)
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad((found * weight).sum(), (query, key, value), retain_graph=True),
        torch.autograd.grad((expected * weight).sum(), (query, key, value)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_the_gate_of_the_mlp_and_its_gradient() -> None:
    torch.manual_seed(0)
    both = torch.randn(3, 2, 10, dtype=torch.float64, requires_grad=True)
    gate, up = both.chunk(2, dim=-1)
    torch.testing.assert_close(swiglu(both), functional.silu(gate) * up)
    assert torch.autograd.gradcheck(swiglu, (both,))


def test_the_norm_is_torch_s_and_so_is_its_gradient() -> None:
    torch.manual_seed(0)
    norm = RootMeanSquareNorm(SimpleNamespace(sequence_parallel=True), 12, eps=1e-3)
    norm.weight.data += torch.randn(12)
    found = []
    for function in (norm, lambda x: functional.rms_norm(x, (12,), norm.weight, 1e-3)):
        x = torch.randn(3, 2, 12, generator=torch.Generator().manual_seed(1), requires_grad=True)
        out = function(x)
        found.append((out, *torch.autograd.grad((out**3).sum(), (x, norm.weight))))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    assert norm.weight.sequence_parallel


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=30),
    budget=st.integers(2, 80),
    packed=st.booleans(),
)
@settings(max_examples=60)
def test_micro_batches_lose_nothing_and_keep_the_budget(lengths: list[int], budget: int, packed: bool) -> None:
    made = [example(turn, length) for turn, length in enumerate(lengths)]
    batches = batching.divide(made, batching.Limits(packed, 1, budget), candidates=False, device=CPU)
    assert sorted(e.turn_id for b in batches for e in b.examples) == sorted(e.turn_id for e in made)
    for batch in batches:
        tokens = [e.num_tokens for e in batch.examples]
        used = sum(tokens) if packed else len(tokens) * max(tokens)
        assert used <= budget or len(tokens) == 1
    again = batching.divide(made[::-1], batching.Limits(packed, 1, budget), candidates=False, device=CPU)
    assert [[e.turn_id for e in b.examples] for b in batches] == [[e.turn_id for e in b.examples] for b in again]


def test_a_sample_beyond_the_budget_goes_alone_and_rows_are_alike() -> None:
    made = [example(turn, length) for turn, length in enumerate([50, 9, 8, 7, 6, 5, 5])]
    batches = batching.divide(made, batching.Limits(True, 1, 20), candidates=False, device=CPU)
    assert [e.num_tokens for e in batches[0].examples] == [50]
    loads = [sum(e.num_tokens for e in b.examples) for b in batches[1:]]
    assert loads == [20, 20]


@given(lengths=st.lists(st.integers(2, 300), min_size=4, max_size=40), size=st.integers(1, 4))
@settings(max_examples=40)
def test_shares_weigh_the_same_but_for_one_sample(lengths: list[int], size: int) -> None:
    made = [example(turn, length) for turn, length in enumerate(lengths)]
    parts = [batching.share(made, LIMITS, rank, size) for rank in range(size)]
    assert sorted(e.turn_id for part in parts for e in part) == sorted(e.turn_id for e in made)
    loads = [sum(e.num_tokens for e in part) for part in parts]
    assert min(loads) > 0 and max(loads) - min(loads) <= max(lengths)


def test_positions_restart_with_every_sequence() -> None:
    made = [batching.read_example(sample, VOCAB) for sample in SAMPLES[:3]]
    batch = batching.collate(chains.alone(made), packed=True, candidates=False, device=CPU)
    assert batch.lengths == (4, 12, 7)
    assert batch.position_ids_BS.tolist() == [[*range(4), *range(12), *range(7)]]
    ids = [token for e in made for token in [*e.prompt_P.tolist(), *e.response_T.tolist()][:-1]]
    assert batch.input_ids_BS.tolist() == [ids]
    ends = {3, 15, 22}
    for row, target in zip(batch.rows_N.tolist(), batch.targets_N.tolist(), strict=True):
        assert row in ends or ids[row + 1] == target


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_in_chunks_are_those_of_all_rows(
    student: Callable[..., Path], layout: Layout, temperature: float
) -> None:
    learner = make_learner(student("qwen3"), layout)
    torch.manual_seed(0)
    targets_N, temperatures_N = torch.randint(0, VOCAB, (11,)), torch.full((11,), temperature)
    ids_NK = torch.randint(0, VOCAB, (11, 3))
    found = []
    for chunk_bytes in (1 << 28, 3 * 4 * VOCAB):
        hidden_NH = torch.randn(11, 64, generator=torch.Generator().manual_seed(1), requires_grad=True)
        scores = logprobs.score(learner.model, hidden_NH, targets_N, temperatures_N, VOCAB, ids_NK, chunk_bytes)
        assert scores.candidates_NK is not None
        (scores.logprobs_N + 2 * scores.tempered_N + scores.candidates_NK.sum(-1)).sum().backward()
        found.append([scores.logprobs_N, scores.tempered_N, scores.entropy_N, scores.candidates_NK, hidden_NH.grad])
    for whole, chunked in zip(*found, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-6)


def test_context_parallel_ranks_divide_padded_samples_only() -> None:
    with pytest.raises(ValidationError, match=r"set training\.packing = false"):
        TrainingSection(context_parallel_size=2)
    assert not TrainingSection(context_parallel_size=2, packing=False).packing
