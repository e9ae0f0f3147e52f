from __future__ import annotations

import numpy as np
import pytest
import torch
from hintloop_contract.messages import Sampling
from hintloop_contract.tensors import pack
from hintloop_trainer import batch as batching
from hintloop_trainer.chains import alone
from hintloop_trainer.errors import SampleError
from hintloop_trainer.lineage import Lineage

from .conftest import VOCAB, make_sample

CPU = torch.device("cpu")
LIMITS = batching.Limits(packed=False, num_sequences=4, num_tokens=None)


def examples(count: int) -> list[batching.Example]:
    made = [make_sample(turn, num_prompt=2 + turn % 3, num_response=1 + 5 * turn % 7) for turn in range(count)]
    return [batching.read_example(sample, VOCAB) for sample in made]


def test_every_target_is_paired_with_the_position_before_it() -> None:
    batch = batching.collate(alone(examples(5)), candidates=False, device=CPU)
    num = len(batch.examples)
    seen = 0
    for row, target, owner in zip(
        batch.rows_N.tolist(), batch.targets_N.tolist(), batch.sample_N.tolist(), strict=True
    ):
        position, sequence = divmod(row, num)
        assert sequence == owner
        example = batch.examples[owner]
        tokens = torch.cat([example.prompt_P, example.response_T]).tolist()
        assert batch.input_ids_BS[sequence, position] == tokens[position]
        assert tokens[position + 1] == target
        assert position + 1 >= len(example.prompt_P)
        seen += 1
    assert seen == sum(len(example.response_T) for example in batch.examples)


def test_division_loses_nothing_and_keeps_like_lengths_together() -> None:
    made = examples(11)
    parts = [batching.share(made, LIMITS, rank, 3) for rank in range(3)]
    assert sorted(e.turn_id for part in parts for e in part) == sorted(e.turn_id for e in made)
    batches = batching.divide(made, LIMITS, candidates=False, device=CPU)
    assert [len(batch.examples) for batch in batches] == [4, 4, 3]
    lengths = [example.num_tokens for batch in batches for example in batch.examples]
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize(
    ("space", "sampling", "temperature", "corrected"),
    [
        ("raw", Sampling(temperature=1.0), 1.0, True),
        ("raw", Sampling(temperature=0.7), 1.0, False),
        ("after_temperature", Sampling(temperature=0.7), 0.7, True),
        ("processed", Sampling(temperature=0.7), 0.7, True),
        ("processed", Sampling(temperature=0.7, top_p=0.9), None, False),
        ("processed", Sampling(temperature=0.7, top_k=20), None, False),
        ("processed", Sampling(temperature=0.7, min_p=0.1), None, False),
        ("processed", Sampling(temperature=0.7, top_k=-1, min_p=0.0), 0.7, True),
        ("processed", Sampling(temperature=0.7, constrained=True), 0.7, False),
        ("processed", Sampling(temperature=0.0), None, False),
        ("raw", Sampling(temperature=0.0), 1.0, False),
        # Engines decode greedily below 1e-5; dividing logits by it would leave no finite ratio.
        ("processed", Sampling(temperature=1e-6), None, False),
        ("raw", Sampling(temperature=1e-6), 1.0, False),
        ("processed", Sampling(temperature=1e-5), 1e-5, True),
    ],
)
def test_the_space_decides_on_importance_sampling(
    space: str, sampling: Sampling, temperature: float | None, corrected: bool
) -> None:
    example = batching.read_example(make_sample(behaviour_space=space, sampling=sampling), VOCAB)
    assert example.behaviour_temperature == temperature
    assert example.corrected == corrected
    assert example.policy_temperature == (sampling.temperature if sampling.temperature >= 1e-5 else 1.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_ids": pack([], "int32")}, "empty"),
        ({"response_ids": pack([1, 2, 3, VOCAB], "int32")}, "vocabulary"),
        ({"prompt_ids": pack([-1], "int32")}, "vocabulary"),
        ({"behaviour_logprobs": pack([-1.0] * 3, "float32")}, "behaviour_logprobs has shape"),
        ({"behaviour_logprobs": pack([-1.0, -1.0, -1.0, float("nan")], "float32")}, "behaviour_logprobs holds"),
        ({"teacher_logprobs": pack([-1.0, 0.5, -1.0, -1.0], "float32")}, "teacher_logprobs holds"),
        ({"teacher_logprobs": pack([-1.0, float("-inf"), -1.0, -1.0], "float32")}, "teacher_logprobs holds"),
        ({"behaviour_space": "cooked"}, "behaviour_space 'cooked'"),
        ({"teacher_topk_ids": pack([[1]] * 4, "int32")}, "come together"),
    ],
)
def test_arrays_that_contradict_one_another_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SampleError, match=message):
        batching.read_example(make_sample(**fields), VOCAB)


def test_lineage_counts_steps_and_knows_only_ancestors() -> None:
    lineage = Lineage()
    assert lineage.current is None
    for version, step in ((3, 0), (4, 1), (7, 2)):
        lineage.release(version, step)
    assert [lineage.behind(version) for version in (3, 4, 5, 7)] == [2, 1, None, 0]
    with pytest.raises(ValueError, match="not above"):
        lineage.release(7, 3)


def test_float32_arrays_are_views_of_the_messages_bytes() -> None:
    sample = make_sample(0)
    assert sample.teacher_logprobs is not None
    example = batching.read_example(sample, VOCAB)
    bytes_at = np.frombuffer(sample.teacher_logprobs.data, np.float32).ctypes.data
    assert example.teacher_T is not None
    assert example.teacher_T.data_ptr() == bytes_at
    assert example.teacher_T.dtype == torch.float32


@pytest.mark.parametrize("ids", [[], [VOCAB], [-1]])
def test_a_hinted_prompt_outside_the_vocabulary_is_refused(ids: list[int]) -> None:
    packed = pack(np.array(ids, np.int32), "int32")
    with pytest.raises(SampleError, match="hinted_prompt_ids is empty or has an id outside"):
        batching.read_example(make_sample(0, hinted_prompt_ids=packed), VOCAB)
