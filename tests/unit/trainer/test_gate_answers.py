"""Probe answers of a tiny model, against the same model asked one prompt at a time and without a cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hintloop_contract.errors import ConfigError, DependencyError
from hintloop_trainer.gate import answering, generation
from hintloop_trainer.gate.answerers import AnsweringProcess
from hintloop_trainer.gate.answering import Answering, RefusedError
from hintloop_trainer.gate.messages import Prompt, Setup
from hintloop_trainer.publish.release import Release
from transformers import AutoModelForCausalLM

#: Of different lengths, and with a beginning in common.
PROMPTS = [[9, 9, 9, 5], [9, 9, 9, 6, 7, 8], [9, 9, 9, 10, 11]]


@pytest.fixture
def model(student: Callable[..., Path]) -> Any:
    return AutoModelForCausalLM.from_pretrained(student("qwen3"), dtype=torch.float32).eval()


def logprobs_after(model: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """``[T, V]``: what the model says of every token of an answer, in one pass without a cache."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([prompt + answer])).logits[0]
    return logits[len(prompt) - 1 : len(prompt) + len(answer) - 1].log_softmax(-1)


def test_greedy_answers_are_the_likeliest_tokens_with_their_entropies(model: Any) -> None:
    answers = generation.sample(model, PROMPTS, temperature=0.0, max_new_tokens=6, seed=0)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        logprobs = logprobs_after(model, prompt, answer.token_ids)
        assert answer.token_ids == logprobs.argmax(-1).tolist()
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        assert answer.entropies == pytest.approx(entropies.tolist(), abs=1e-4)


def test_sampled_answers_depend_on_the_seed_alone_and_not_on_who_has_ended(model: Any) -> None:
    draw = generation.sample
    whole = draw(model, PROMPTS, temperature=1.0, max_new_tokens=8, seed=3)
    assert draw(model, PROMPTS, temperature=1.0, max_new_tokens=8, seed=3) == whole
    assert draw(model, PROMPTS, temperature=1.0, max_new_tokens=8, seed=4) != whole
    # Ending where the first answer's third token stands changes nothing of the others up to their own end.
    end = whole[0].token_ids[2]
    model.generation_config.eos_token_id = [end]
    cut = draw(model, PROMPTS, temperature=1.0, max_new_tokens=8, seed=3)
    for before, after in zip(whole, cut, strict=True):
        size = before.token_ids.index(end) + 1 if end in before.token_ids else len(before.token_ids)
        assert (after.token_ids, after.ended) == (before.token_ids[:size], end in before.token_ids)


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[0.2, 0.5, 0.3]]).log().expand(3000, 3)
    uniform = torch.rand(3000, generator=torch.Generator().manual_seed(0))
    shares = torch.bincount(generation.draw(logits, 1.0, uniform), minlength=3) / 3000
    assert shares.tolist() == pytest.approx([0.2, 0.5, 0.3], abs=0.03)
    # At half the temperature probabilities are squared and normalised: 0.04, 0.25 and 0.09 of 0.38.
    shares = torch.bincount(generation.draw(logits, 0.5, uniform), minlength=3) / 3000
    assert shares.tolist() == pytest.approx([0.105, 0.658, 0.237], abs=0.03)


@pytest.mark.parametrize("most", [2**27, 1])
def test_likelihoods_are_those_of_a_plain_pass(model: Any, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(generation, "MAX_LOGITS", most)
    answers = [[5, 6, 7, 2], [2], [8, 9]]
    read = generation.read_prompts(model, PROMPTS)
    for _ in range(2):
        # Twice: what was read is not changed by going on from it.
        found = generation.negative_log_likelihoods(model, read, answers)
        for prompt, answer, value in zip(PROMPTS, answers, found, strict=True):
            logprobs = logprobs_after(model, prompt, answer)
            plain = -logprobs.gather(1, torch.tensor(answer)[:, None]).mean().item()
            assert value == pytest.approx(plain, abs=1e-4)


def test_prompts_of_which_one_begins_another_share_less() -> None:
    assert generation.common_prefix([[1, 2, 3], [1, 2]]) == [1]
    assert generation.common_prefix([[1], [1, 2]]) == []
    assert generation.common_prefix([[4, 2], [1, 2]]) == []


def setup_of(directory: Path, **fields: Any) -> Setup:
    settings: dict[str, Any] = {
        "base": str(directory),
        "tokenizer": str(directory),
        "dtype": "float32",
        "device": "cpu",
        "temperature": 1.0,
        "max_new_tokens": 5,
        "seed": 0,
        "batch_size": 2,
        "prompts": [Prompt((), tuple(prompt)) for prompt in PROMPTS],
    }
    return Setup(**{**settings, **fields})


def test_words_need_a_tokenizer(student: Callable[..., Path]) -> None:
    directory = student("qwen3")
    words = Prompt(({"role": "user", "content": "hello"},), ())
    with pytest.raises(RefusedError, match="holds no tokenizer; give model.tokenizer_path"):
        Answering(setup_of(directory, prompts=[words]))


class Tokenizer:
    """One that has no word for anything, and a template that knows no system role."""

    chat_template = "{{ messages }}"

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        if messages[0]["role"] == "system":
            raise ValueError("no system role")
        return ""

    def encode(self, text: str, **_: Any) -> list[int]:
        return []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Prompt((), (5, 131)), "prompt 4 has the token 131, and the student's vocabulary is 131; give ids of"),
        (Prompt(({"role": "system", "content": "x"},), ()), "template refuses prompt 4: no system role; change its"),
        (Prompt(({"role": "user", "content": ""},), ()), "prompt 4 comes to no token at all; give it a content"),
    ],
)
def test_a_prompt_that_the_student_cannot_be_asked_is_refused_at_once(
    student: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, wrong: Prompt, message: str
) -> None:
    monkeypatch.setattr(answering, "_tokenizer", lambda _: Tokenizer())
    prompts = [*(Prompt((), tuple(prompt)) for prompt in PROMPTS), wrong]
    with pytest.raises(RefusedError, match=f"gate.probe_file: .*{message}"):
        Answering(setup_of(student("qwen3"), prompts=prompts))


def test_a_temperature_next_to_nothing_is_greedy() -> None:
    found = generation.draw(torch.tensor([[1.0, 3.0, 2.0]]), 1e-42, torch.tensor([0.99]))
    assert found.tolist() == [1]


def test_a_device_that_is_not_there_is_refused(student: Callable[..., Path]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(RefusedError, match="gate.device is 'cuda'"):
        Answering(setup_of(student("qwen3"), device="cuda"))


def test_the_process_answers_as_the_model_does_and_goes_on_after_a_failure(student: Callable[..., Path]) -> None:
    base, other = student("qwen3"), student("qwen3", seed=1)
    expected = Answering(setup_of(base)).look(str(other))

    async def ask() -> None:
        process = AnsweringProcess(setup_of(base), timeout_s=120)
        try:
            assert await process.prompt_ids() == PROMPTS
            assert await process.look(Release(2, other, [], [])) == expected
            with pytest.raises(DependencyError, match="gate"):
                await process.look(Release(3, base / "nowhere", [], []))
            assert await process.look(Release(2, other, [], [])) == expected
            assert await process.read([[5, 2], [2], [7]], [1.0, 2.0, 3.0], [True, True, False])
        finally:
            await process.close()

    asyncio.run(ask())


def test_what_can_never_be_answered_is_a_wrong_configuration(student: Callable[..., Path]) -> None:
    words = Prompt(({"role": "user", "content": "hello"},), ())

    async def ask() -> None:
        process = AnsweringProcess(setup_of(student("qwen3"), prompts=[words]), timeout_s=120)
        with pytest.raises(ConfigError, match="gate.enabled = false"):
            await process.prompt_ids()

    asyncio.run(ask())
