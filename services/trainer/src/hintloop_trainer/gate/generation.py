"""Reading and answering prompts in batches with a Hugging Face model: once-read prompts, sampling, likelihoods.

Legend: B = prompts of a batch, S = positions so far, T = positions of an answer, V = vocabulary.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from hintloop_trainer.batch import GREEDY_BELOW

#: Most logits at once, elements.
MAX_LOGITS = 2**27


@dataclass(frozen=True, slots=True)
class ReadPrompts:
    """Prompts that a model has read; never changed, what goes on from them works on a copy."""

    cache: Any
    """Keys and values; `transformers` names the type."""
    mask_BS: torch.Tensor
    """1 where there is a token: prompts are padded on their left."""
    logits_BV: torch.Tensor
    """Of the token after each prompt, float32."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens of one answer, with the entropy (nats) at temperature 1 of the distribution that each was drawn from."""

    token_ids: list[int]
    entropies: list[float]
    ended: bool


def end_tokens(model: Any) -> list[int]:
    """Ids that end an answer."""
    found = model.generation_config.eos_token_id
    if found is None:
        found = model.config.eos_token_id
    return [] if found is None else [found] if isinstance(found, int) else list(found)


def common_prefix(prompts: list[list[int]]) -> list[int]:
    """The longest beginning that all prompts share and that leaves a token to each."""
    shortest = min(map(len, prompts)) - 1
    size = 0
    while size < shortest and len({prompt[size] for prompt in prompts}) == 1:
        size += 1
    return prompts[0][:size]


def _positions(mask_BS: torch.Tensor, num_new: int) -> torch.Tensor:
    return (mask_BS.cumsum(-1) - 1).clamp(min=0)[:, -num_new:]


def _forward(
    model: Any, ids_BT: torch.Tensor, mask_BS: torch.Tensor, cache: Any, keep: int
) -> tuple[torch.Tensor, Any]:
    """Logits ``[B, keep, V]`` of the last positions, float32, and the grown cache."""
    output = model(
        input_ids=ids_BT,
        attention_mask=mask_BS,
        position_ids=_positions(mask_BS, ids_BT.shape[1]),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=keep,
    )
    return output.logits.float(), output.past_key_values


@torch.inference_mode()
def read_prompts(model: Any, prompts: list[list[int]]) -> ReadPrompts:
    """Read prompts as one batch; what they begin with alike (a system prompt) is read once."""
    device, prefix, cache = model.device, common_prefix(prompts), None
    if prefix:
        ids = torch.tensor([prefix], device=device)
        _, cache = _forward(model, ids, torch.ones_like(ids), None, 1)
        cache.batch_repeat_interleave(len(prompts))
    rest = [prompt[len(prefix) :] for prompt in prompts]
    longest = max(map(len, rest))
    ids_BT = torch.tensor([[0] * (longest - len(row)) + row for row in rest], device=device)
    rows = [[1] * len(prefix) + [0] * (longest - len(row)) + [1] * len(row) for row in rest]
    mask_BS = torch.tensor(rows, device=device)
    logits_B1V, cache = _forward(model, ids_BT, mask_BS, cache, 1)
    return ReadPrompts(cache, mask_BS, logits_B1V[:, -1])


def draw(logits_BV: torch.Tensor, temperature: float, uniform_B: torch.Tensor) -> torch.Tensor:
    """Tokens ``[B]`` by inverting the distribution function at ``uniform_B``; the likeliest ones at temperature 0.

    As in engines, what is next to 0 counts as 0: logits over it would be no numbers.
    """
    if temperature < GREEDY_BELOW:
        return logits_BV.argmax(-1)
    upto_BV = (logits_BV / temperature).softmax(-1).cumsum(-1)
    # Scaled by the last entry, which rounding keeps from being exactly 1.
    found = torch.searchsorted(upto_BV, uniform_B[:, None] * upto_BV[:, -1:], right=True)[:, 0]
    return found.clamp(max=logits_BV.shape[-1] - 1)


@torch.inference_mode()
def sample(
    model: Any, prompts: list[list[int]], *, temperature: float, max_new_tokens: int, seed: int
) -> list[Sampled]:
    """Answers to ``prompts`` as one batch.

    What is drawn depends on ``seed``, the row and the position alone, so that like weights give like answers.
    """
    device = model.device
    # On the CPU, so that the numbers are the same everywhere.
    uniform_BT = torch.rand(len(prompts), max_new_tokens, generator=torch.Generator().manual_seed(seed)).to(device)
    ends = torch.tensor(end_tokens(model), dtype=torch.long, device=device)
    read = read_prompts(model, prompts)
    cache, mask_BS, logits_BV = read.cache, read.mask_BS, read.logits_BV
    answers = [Sampled([], [], ended=False) for _ in prompts]
    active = torch.arange(len(prompts), device=device)
    for position in range(max_new_tokens):
        logprobs_BV = logits_BV.log_softmax(-1)
        entropy_B = torch.special.entr(logprobs_BV.exp()).sum(-1)
        token_B = draw(logits_BV, temperature, uniform_BT[active, position])
        ended_B = torch.isin(token_B, ends)
        for row, token, entropy, ended in zip(
            active.tolist(), token_B.tolist(), entropy_B.tolist(), ended_B.tolist(), strict=True
        ):
            answers[row].token_ids.append(token)
            answers[row].entropies.append(entropy)
            if ended:
                answers[row] = Sampled(answers[row].token_ids, answers[row].entropies, ended=True)
        going = (~ended_B).nonzero().flatten()
        if not len(going) or position + 1 == max_new_tokens:
            break
        if len(going) < len(active):
            cache.batch_select_indices(going)
            active, mask_BS, token_B = active[going], mask_BS[going], token_B[going]
        mask_BS = torch.cat([mask_BS, mask_BS.new_ones(len(active), 1)], dim=1)
        logits_B1V, cache = _forward(model, token_B[:, None], mask_BS, cache, 1)
        logits_BV = logits_B1V[:, -1]
    return answers


@torch.inference_mode()
def negative_log_likelihoods(model: Any, read: ReadPrompts, answers: list[list[int]]) -> list[float]:
    """Of each prompt's answer: the mean over its tokens at temperature 1, nats per token."""
    longest = max(map(len, answers))
    num_rows = max(1, MAX_LOGITS // (longest * read.logits_BV.shape[-1]))
    found: list[float] = []
    for start in range(0, len(answers), num_rows):
        found += _likelihoods_of(model, read, answers, list(range(start, min(start + num_rows, len(answers)))))
    return found


def _likelihoods_of(model: Any, read: ReadPrompts, answers: list[list[int]], rows: list[int]) -> list[float]:
    device = model.device
    index = torch.tensor(rows, device=device)
    logits_B1V = read.logits_BV[index][:, None]
    longest = max(len(answers[row]) for row in rows)
    if longest > 1:
        cache = copy.deepcopy(read.cache)
        cache.batch_select_indices(index)
        # What stands behind an answer is read, too, and of no effect on what stands before it.
        padded = [(answers[row] + [0] * longest)[: longest - 1] for row in rows]
        ids_BT = torch.tensor(padded, device=device)
        mask_BS = torch.cat([read.mask_BS[index], torch.ones_like(ids_BT)], dim=1)
        logits_BTV, _ = _forward(model, ids_BT, mask_BS, cache, longest - 1)
        logits_B1V = torch.cat([logits_B1V, logits_BTV], dim=1)
    found = []
    for position, row in enumerate(rows):
        targets_T1 = torch.tensor(answers[row], device=device)[:, None]
        logprobs_TV = logits_B1V[position, : len(answers[row])].log_softmax(-1)
        found.append(-float(logprobs_TV.gather(1, targets_T1).mean()))
    return found
