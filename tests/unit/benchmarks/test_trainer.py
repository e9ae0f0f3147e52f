"""What the trainer's benchmark compares: the same samples for all, and a baseline within the same budget."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hintloop_contract.tensors import unpack
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.trainer import samples
from benchmarks.trainer.peer import Peer

BUDGET = 1024
VOCAB = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("peer")
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def test_samples_are_the_same_for_all_and_within_their_bounds() -> None:
    made = samples.make(50, VOCAB, seed=3, sessions=50)
    assert made == samples.make(50, VOCAB, seed=3, sessions=50)
    prompts, answers = [len(s.prompt_ids) for s in made], [len(s.response_ids) for s in made]
    assert min(prompts) >= 50 and max(prompts) <= 600 and max(prompts) > 400
    assert min(answers) >= 10 and max(answers) <= 200 and max(answers) > 130
    assert samples.num_tokens(made) == sum(prompts) + sum(answers)


def test_a_later_turn_s_prompt_holds_the_turn_before() -> None:
    made = samples.make(400, VOCAB, seed=3, sessions=200)
    assert len({sample.session_id for sample in made}) == 200
    others = []
    for before, after in zip(made[:200], made[200:], strict=True):
        assert before.session_id == after.session_id
        past, prompt = [*unpack(before.prompt_ids), *unpack(before.response_ids)], [*unpack(after.prompt_ids)]
        assert 10 <= len(prompt) - len(past) <= 200
        # The last id of an answer is no input of its turn: it never is the one that differs.
        assert prompt[: len(before.prompt_ids)] == past[: len(before.prompt_ids)] and prompt[len(past) - 1] == past[-1]
        others.append(sum(one != other for one, other in zip(past, prompt, strict=False)))
    assert set(others) == {0, 1} and 40 <= sum(others) <= 80


def test_the_baseline_takes_the_budget_and_the_same_step_however_it_is_ordered(model: Path) -> None:
    made = samples.make(12, VOCAB, seed=1, sessions=12)
    steps = []
    for ordered in (True, False):
        peer = Peer(model, made, BUDGET, ordered=ordered, learning_rate=1e-3)
        padded = [len(batch) * max(len(s.prompt_ids) + len(s.response_ids) for s in batch) for batch in peer.batches]
        assert max(padded) <= BUDGET and sum(map(len, peer.batches)) == len(made)
        steps.append((sum(padded), peer.step()))
    assert steps[0][0] < steps[1][0]
    assert steps[0][1] == pytest.approx(steps[1][1], rel=1e-4)


def test_the_baseline_s_loss_is_the_methods(model: Path) -> None:
    """Sample by sample, all logits, no padding."""
    made = samples.make(3, VOCAB, seed=2, sessions=3)
    peer = Peer(model, made, BUDGET, ordered=True, learning_rate=1e-3)
    total, count = 0.0, 0
    for sample in made:
        ids = torch.tensor([*unpack(sample.prompt_ids).tolist(), *unpack(sample.response_ids).tolist()])
        with torch.no_grad():
            logprobs = peer.model(ids[None]).logits[0].log_softmax(-1)[len(sample.prompt_ids) - 1 : -1]
        assert sample.teacher_logprobs is not None
        old = logprobs.gather(-1, ids[len(sample.prompt_ids) :, None]).squeeze(-1)
        weight = (old - torch.tensor(unpack(sample.behaviour_logprobs))).exp().clamp(max=2.0)
        advantage = (torch.tensor(unpack(sample.teacher_logprobs)) - old).clamp(-5.0, 5.0)
        total, count = total - float((weight * advantage).sum()), count + len(old)
    assert peer.step()[0] == pytest.approx(total / count, rel=1e-4)
