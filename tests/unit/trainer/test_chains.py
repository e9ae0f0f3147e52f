"""Turns whose tokens later turns begin with: computed once, and every number as if each had gone by itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hintloop_contract.messages import Sample
from hintloop_contract.tensors import pack, unpack
from hintloop_trainer import batch as batching
from hintloop_trainer import chains
from hintloop_trainer.learner import Learner
from hintloop_trainer.megatron.parallel import Layout
from hypothesis import given, settings
from hypothesis import strategies as st

from .conftest import VOCAB, build_learner, following, make_sample
from .test_packing import CPU, LIMITS, gradients


def session(number: int, turns: int, **fields: Any) -> list[Sample]:
    """Turns of one session: each prompt holds the prompt and the answer before, and some tokens more."""
    made: list[Sample] = []
    for turn in range(turns):
        sample = make_sample(10 * number + turn, num_prompt=3 + turn, num_response=2 + turn, **fields)
        made.append(following(made[-1], sample) if made else sample)
    return made


def read(samples: list[Sample]) -> list[batching.Example]:
    return [batching.read_example(sample, VOCAB) for sample in samples]


def turns(found: list[chains.Chain]) -> list[list[str]]:
    return [[example.turn_id for example in chain.examples] for chain in found]


def with_ids(turn: int, prompt: list[int], response: list[int]) -> Sample:
    ids = {"prompt_ids": pack(np.array(prompt), "int32"), "response_ids": pack(np.array(response), "int32")}
    return make_sample(turn, num_response=len(response), **ids)


def test_turns_of_a_session_are_one_chain_in_any_order() -> None:
    made = read([*session(1, 3), *session(2, 2), *session(3, 1)])
    expected = [["turn-0012", "turn-0011", "turn-0010"], ["turn-0021", "turn-0020"], ["turn-0030"]]
    for order in (made, made[::-1], [made[i] for i in (4, 1, 5, 0, 3, 2)]):
        assert turns(chains.chains(order, shared=True)) == expected
    by_itself = chains.chains(made, shared=False)
    assert all(len(chain.examples) == 1 for chain in by_itself) and len(by_itself) == 6


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        # The last token of an answer is only a target: the later turn need not hold it.
        (([1, 2], [3, 4]), ([1, 2, 3, 9], [5]), True),
        (([1, 2], [3, 4]), ([1, 2, 8, 9], [5]), False),
        # One token written anew within the answer, as tokenizers do.
        (([1, 2], [3, 4, 5]), ([1, 2, 3, 7, 5, 6], [5]), False),
        # Answers to one prompt: nothing but the prompt is shared, which is no beginning of a whole turn.
        (([1, 2], [3, 4, 5]), ([1, 2], [4, 4, 5]), False),
        # Nor where one answer begins the other: a position would be trained for both.
        (([1, 2], [3]), ([1, 2], [4, 4, 5]), False),
        (([1, 2], [3, 4]), ([1, 2], [3, 4]), False),
        (([1, 2], [3, 4]), ([1, 2, 3], [4, 4]), False),
        (([1, 2], [3, 4]), ([1, 2, 3, 4], [4, 4]), True),
    ],
)
def test_what_is_a_beginning(first: Any, second: Any, together: bool) -> None:
    made = read([with_ids(1, *first), with_ids(2, *second)])
    assert len(chains.chains(made, shared=True)) == (1 if together else 2)


def test_answers_to_one_prompt_leave_room_for_one_of_them() -> None:
    # Two answers to one prompt, and a turn that goes on from the first: between them in order stands the other.
    made = read([with_ids(1, [1, 2], [3]), with_ids(2, [1, 2], [3, 1]), with_ids(3, [1, 2, 4, 5], [6])])
    assert turns(chains.chains(made, shared=True)) == [["turn-0003", "turn-0001"], ["turn-0002"]]


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=6), st.integers(1, 3)), min_size=1, max_size=14)
)
@settings(max_examples=150)
def test_chains_hold_beginnings_and_train_no_position_twice(shapes: list[tuple[list[int], int]]) -> None:
    made = read([with_ids(turn, ids, ids[:1] * count) for turn, (ids, count) in enumerate(shapes)])
    found = chains.chains(made, shared=True)
    assert sorted(e.turn_id for c in found for e in c.examples) == [e.turn_id for e in made]
    for chain in found:
        for later, example in pairwise(chain.examples):
            ids = chains.inputs(example).tolist()
            assert later.prompt_P.tolist()[: len(ids)] == ids
        (batch,) = batching.divide(chain.examples, LIMITS, candidates=False, device=CPU)
        rows = batch.rows_N.tolist()
        assert len(rows) == len(set(rows)) and max(rows) < batch.input_ids_BS.numel() == chain.num_positions
    # Nothing that could stand at the end of a chain stands by itself.
    for chain in found:
        first = chains.inputs(chain.examples[0]).tolist()
        ends = [other.examples[-1].prompt_P.tolist() for other in found if other is not chain]
        assert not any(len(first) < len(end) and end[: len(first)] == first for end in ends)


def make_learner(directory: Path, layout: Layout, num: int, **training: Any) -> Learner:
    keys = {"train_batch_size": num, "max_staleness_steps": 8, "grad_clip": 0.0, **training}
    advantage = {"estimator": keys.pop("estimator", "on_policy_distillation")}
    return build_learner(directory, layout, rollout={"rollout_batch_size": num}, training=keys, advantage=advantage)


def with_candidates(sample: Sample, k: int) -> Sample:
    rng = np.random.default_rng(len(unpack(sample.prompt_ids)))
    shape = len(unpack(sample.response_ids)), k
    return msgspec.structs.replace(
        sample,
        teacher_topk_ids=pack(np.stack([rng.permutation(VOCAB)[:k] for _ in range(shape[0])]), "int32"),
        teacher_topk_logprobs=pack(np.full(shape, -3.0) - rng.random(shape), "float16"),
        teacher_tail_logprobs=pack(np.full(shape[0], -1.0), "float32"),
    )


def check_the_same(directory: Path, layout: Layout, made: list[Sample], **keys: Any) -> None:
    """A step on shared sequences has the numbers of one on samples by themselves."""
    encoded = [msgspec.msgpack.encode(sample) for sample in made[::-1]]
    found = []
    for shared in (False, True):
        learner = make_learner(directory, layout, len(made), share_prefixes=shared, **keys)
        learner.begin([encoded])
        result = learner.step(0)
        found.append((result, gradients(learner)))
    (apart, expected), (together, grads) = found
    assert apart.work.num_shared == 0 and together.work.num_shared > 0
    assert together.work.num_read == apart.work.num_read and together.num_tokens == apart.num_tokens
    assert together.work.flops < apart.work.flops
    assert together.loss == pytest.approx(apart.loss, rel=1e-5)
    assert together.grad_norm == pytest.approx(apart.grad_norm, rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(grads[name], gradient, rtol=1e-5, atol=1e-5 * float(gradient.abs().max()), msg=name)


KL_AND_ENTROPY = {"kl_coef": 0.1, "force_kl": True, "entropy_coef": 0.05}


@pytest.mark.parametrize(
    "keys",
    [
        {"micro_batch_size": 4},
        {"packing": False, "micro_batch_size": 4},
        {"micro_batch_tokens": 40},
        {"micro_batch_size": 1, "estimator": "grpo", **KL_AND_ENTROPY},
        {"micro_batch_size": 1, "estimator": "combine", **KL_AND_ENTROPY},
        {"micro_batch_size": 4, "loss_reduction": "sample_mean"},
    ],
)
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe"])
def test_the_step_is_that_of_turns_by_themselves(
    student: Callable[..., Path], layout: Layout, family: str, keys: dict[str, Any]
) -> None:
    check_the_same(
        student(family, tied=family == "qwen3"), layout, [*session(1, 4), *session(2, 3), *session(3, 1)], **keys
    )


@pytest.mark.parametrize("loss", ["topk_reverse_kl.py", "topk_ppo_clip.py"])
def test_candidates_stay_with_their_turns(student: Callable[..., Path], layout: Layout, loss: str) -> None:
    made = [with_candidates(sample, 5) for sample in (*session(1, 3), *session(2, 2))]
    check_the_same(student(), layout, made, custom_loss_path=loss, estimator="grpo", micro_batch_size=1)


OWN_LOSS = """
import torch
from hintloop_trainer.losses.inputs import TokenLosses
REQUIRES = {"score"}


def compute_loss(inputs):
    weights_N = inputs.scores_N if inputs.advantages_N is None else inputs.advantages_N
    return TokenLosses(-weights_N * inputs.logprobs_N)
"""


def test_what_a_custom_loss_is_given_is_the_step_s(student: Callable[..., Path], layout: Layout) -> None:
    """Whichever samples meet in a micro-batch: every second one is without the teacher that the estimator needs."""
    directory = student()
    (directory / "own.py").write_text(OWN_LOSS)
    made = [*session(1, 4, score=1), *session(2, 2, score=-1)]
    without = {"teacher_logprobs": None, "hint": None}
    made = [msgspec.structs.replace(one, **without) if n % 2 else one for n, one in enumerate(made)]
    check_the_same(directory, layout, made, custom_loss_path="own.py", micro_batch_size=1)


def test_log_probabilities_before_several_steps_are_those_of_turns_by_themselves(
    student: Callable[..., Path], layout: Layout
) -> None:
    made = session(1, 4)
    encoded = [msgspec.msgpack.encode(sample) for sample in made]
    by_turn: list[dict[str, torch.Tensor]] = []
    for shared in (False, True):
        learner = make_learner(student("qwen3"), layout, 4, share_prefixes=shared)
        learner.begin([encoded, encoded])
        plan = learner._plans[0]
        assert [len(batch.lengths) for batch in plan.batches] == ([1] if shared else [2, 2])
        by_turn.append({})
        for batch, old in zip(plan.batches, plan.old, strict=True):
            parts = old.logprobs_N.split([example.num_trained for example in batch.examples])
            by_turn[-1].update(zip([example.turn_id for example in batch.examples], parts, strict=True))
    assert by_turn[0].keys() == by_turn[1].keys()
    for turn, values in by_turn[0].items():
        torch.testing.assert_close(by_turn[1][turn], values, rtol=1e-5, atol=1e-5)


def test_what_was_shared_is_told(student: Callable[..., Path], layout: Layout) -> None:
    made = session(1, 3)
    learner = make_learner(student("qwen3"), layout, 3, packing=False, micro_batch_size=2)
    learner.begin([[msgspec.msgpack.encode(sample) for sample in made]])
    work = learner.step(0).work
    lengths = [len(unpack(sample.prompt_ids)) + len(unpack(sample.response_ids)) - 1 for sample in made]
    assert (work.num_positions, work.num_padding, work.num_shared) == (lengths[2], 0, lengths[0] + lengths[1])
    assert work.shared_share == pytest.approx((lengths[0] + lengths[1]) / sum(lengths))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_no_rank_is_idle_because_of_a_long_session(size: int) -> None:
    limits = batching.Limits(packed=True, num_sequences=2, num_tokens=None)
    made = read([*session(1, 4), *session(2, 1)])
    parts = [batching.share(made, limits, rank, size) for rank in range(size)]
    assert sorted(e.turn_id for part in parts for e in part) == sorted(e.turn_id for e in made)
    assert sum(not part for part in parts) == max(0, size - len(made))
    if size == 2:
        assert [len(part) for part in parts] == [4, 1]
    if size == 3:
        # The shortest turn of the long session went, which costs the least to compute again.
        assert [e.turn_id for e in made if [e] in parts] == ["turn-0010", "turn-0020"]


def test_turns_with_other_numbers_of_candidates_are_apart() -> None:
    first, second, third = session(1, 3)
    made = read([with_candidates(first, 2), with_candidates(second, 3), with_candidates(third, 2)])
    limits = batching.Limits(packed=True, num_sequences=4, num_tokens=None)
    batches = batching.divide(made, limits, candidates=True, device=CPU)
    assert sorted([e.turn_id for e in batch.examples] for batch in batches) == [
        ["turn-0011"],
        ["turn-0012", "turn-0010"],
    ]
    assert [batch.candidates_NK.shape for batch in batches if batch.candidates_NK is not None] == [(6, 2), (3, 3)]


def test_turns_of_one_name_can_be_taken_apart() -> None:
    made = read([with_ids(1, [1, 2], [3]), with_ids(1, [1, 2, 3, 4], [5]), with_ids(1, [1, 2, 3, 4, 5], [6])])
    assert len(chains.apart(chains.chains(made, shared=True), 3)) == 3
