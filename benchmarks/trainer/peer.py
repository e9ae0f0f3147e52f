"""The baseline: transformers' model with torch's AdamW, doing the same loss on the same samples.

Attention by torch's kernel, head and log-probabilities on response tokens only, samples sorted by length and padded
on the right within each forward pass; no attention mask, which causal attention does not need there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as functional
from hintloop_contract.messages import Sample
from hintloop_contract.tensors import unpack
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

CLIP, TIS_CAP, ADVANTAGE_CLIP, GRAD_CLIP = 0.2, 2.0, 5.0, 1.0


class Peer:
    """One model and its optimizer."""

    def __init__(self, model: Path, samples: Sequence[Sample], budget: int, *, ordered: bool, learning_rate: float):
        """``budget`` is of padded tokens a forward pass; ``ordered``: by length, else as they came."""
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, weight_decay=0.0, fused=True)
        self.batches = _batches(samples, budget, ordered)
        self.num_trained = sum(len(unpack(sample.response_ids)) for sample in samples)

    def step(self) -> tuple[float, float]:
        """One optimizer step; the loss and the gradient's norm."""
        total = 0.0
        for batch in self.batches:
            loss = self._loss(batch) / self.num_trained
            torch.autograd.backward(loss)
            total += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRAD_CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total, float(norm)

    def _loss(self, batch: Sequence[Sample]) -> torch.Tensor:
        """OPD: PPO-clipped, with truncated importance weights; the policy before the step is the policy now."""
        ids = [torch.from_numpy(unpack(sample.prompt_ids).astype("int64")) for sample in batch]
        answers = [torch.from_numpy(unpack(sample.response_ids).astype("int64")) for sample in batch]
        inputs = [torch.cat([prompt, answer])[:-1] for prompt, answer in zip(ids, answers, strict=True)]
        hidden = self.model.model(input_ids=pad_sequence(inputs, batch_first=True), use_cache=False).last_hidden_state
        rows = [
            hidden[number, len(prompt) - 1 : len(prompt) + len(answer) - 1]
            for number, (prompt, answer) in enumerate(zip(ids, answers, strict=True))
        ]
        logits = self.model.lm_head(torch.cat(rows))
        logprobs = -functional.cross_entropy(logits, torch.cat(answers), reduction="none")
        old = logprobs.detach()
        taught = [sample.teacher_logprobs for sample in batch if sample.teacher_logprobs is not None]
        teacher = torch.cat([torch.from_numpy(unpack(part).copy()) for part in taught])
        behaviour = torch.cat([torch.from_numpy(unpack(sample.behaviour_logprobs).copy()) for sample in batch])
        advantages = (teacher - old).clamp(-ADVANTAGE_CLIP, ADVANTAGE_CLIP)
        weights = (old - behaviour).exp().clamp(max=TIS_CAP)
        ratio = (logprobs - old).exp()
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        return -(weights * surrogate).sum()


def padding(samples: Sequence[Sample], budget: int, *, ordered: bool) -> float:
    """Positions that are computed for one real one."""
    batches = _batches(samples, budget, ordered)
    computed = sum(len(batch) * (max(map(_length, batch)) - 1) for batch in batches)
    return computed / sum(_length(sample) - 1 for sample in samples)


def _length(sample: Sample) -> int:
    return len(unpack(sample.prompt_ids)) + len(unpack(sample.response_ids))


def _batches(samples: Sequence[Sample], budget: int, ordered: bool) -> list[list[Sample]]:
    batches: list[list[Sample]] = []
    longest = 0
    for sample in sorted(samples, key=_length, reverse=True) if ordered else samples:
        length = max(longest, _length(sample))
        if batches and (len(batches[-1]) + 1) * length <= budget:
            batches[-1].append(sample)
            longest = length
        else:
            batches.append([sample])
            longest = _length(sample)
    return batches
