"""Samples as tensors, and their division into micro-batches and data-parallel shares.

Owns the one place where tokens meet the positions that predict them: the token at position p of
prompt + response is predicted by the hidden state at p - 1, so the trained rows of a sample are
``P - 1 .. P + T - 2`` and their targets are the response ids, in order.
Sequences stand end to end in one row, each with positions of its own (packed), or below one another, padded on
the right; under causal attention no trained row can see the padding. Samples that begin one another share a sequence
(:mod:`chains`).
Legend: P = prompt tokens, T = response tokens, B = sequences, S = positions, N = trained tokens of a
micro-batch, K = teacher candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from hintloop_contract.config.schema import TrainingSection
from hintloop_contract.messages import Sample, Sampling
from hintloop_contract.tensors import PackedArray, unpack
from torch.nn.utils.rnn import pad_sequence
from torch.utils.dlpack import from_dlpack

from hintloop_trainer.chains import Chain, apart, chains, inputs
from hintloop_trainer.errors import SampleError

#: Sampling temperatures below this are greedy decoding, as they are to the engines.
GREEDY_BELOW = 1e-5


def is_greedy(sampling: Sampling) -> bool:
    """Whether the answer was the likeliest token each time, and not sampled."""
    return sampling.temperature < GREEDY_BELOW


def is_truncated(sampling: Sampling) -> bool:
    """Whether unlikely tokens could not be sampled."""
    return sampling.top_p < 1.0 or sampling.top_k not in (None, 0, -1) or bool(sampling.min_p)


@dataclass(frozen=True, slots=True)
class Example:
    """One sample with its arrays as CPU tensors, checked against one another."""

    turn_id: str
    prompt_P: torch.Tensor
    response_T: torch.Tensor
    behaviour_T: torch.Tensor
    """float32, nats, at ``behaviour_temperature``."""
    policy_temperature: float
    """Temperature of the policy ratio: the sampling temperature, 1 for greedy answers."""
    behaviour_temperature: float | None
    """Temperature at which ``behaviour_T`` can be recomputed; ``None`` when it cannot (truncated sampling)."""
    corrected: bool
    """Whether truncated importance sampling applies."""
    score: int | None
    teacher_T: torch.Tensor | None
    topk_ids_TK: torch.Tensor | None
    topk_logprobs_TK: torch.Tensor | None
    tail_T: torch.Tensor | None
    hinted_P: torch.Tensor | None = None
    """The prompt with its hint, where the answer is scored here or from here."""
    relative: float | None = None
    """The score against those of other answers to the same prompt, in standard deviations, where there are others."""

    @property
    def num_tokens(self) -> int:
        """Prompt + response tokens."""
        return len(self.prompt_P) + len(self.response_T)

    @property
    def num_trained(self) -> int:
        """Response tokens."""
        return len(self.response_T)


def behaviour_temperature(space: str, sampling: Sampling) -> float | None:
    """Temperature at which the trainer can compute what the engine reported; ``None`` when it cannot."""
    if space == "raw":
        return 1.0
    if space not in ("after_temperature", "processed"):
        raise SampleError(f"behaviour_space {space!r} is unknown; known are raw, after_temperature, processed")
    if is_greedy(sampling) or (space == "processed" and is_truncated(sampling)):
        return None
    return sampling.temperature


def is_corrected(space: str, sampling: Sampling) -> bool:
    """Whether the engine's log-probabilities are those of the distribution that was sampled from.

    Raw ones are only at temperature 1; truncation and constraints are recorded, not corrected.
    """
    if is_truncated(sampling) or sampling.constrained or is_greedy(sampling):
        return False
    return behaviour_temperature(space, sampling) == sampling.temperature


def _tensor(packed: PackedArray, dtype: torch.dtype, name: str, shape: tuple[int | None, ...]) -> torch.Tensor:
    array: np.ndarray[Any, Any] = unpack(packed)
    fits = len(array.shape) == len(shape) and all(
        want is None or want == got for want, got in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise SampleError(f"{name} has shape {list(array.shape)}, expected {[s if s else '*' for s in shape]}")
    # A view of the message's bytes, where the dtype is already right: nothing here writes to it.
    return from_dlpack(array).to(dtype)


def _checked_logprobs(
    packed: PackedArray, name: str, shape: tuple[int | None, ...], *, impossible: bool = False
) -> torch.Tensor:
    """``impossible``: minus infinity is a value, as it is for tokens that nobody sampled."""
    values = _tensor(packed, torch.float32, name, shape)
    # A sum in float16 or float32 can come out a little above the certain event.
    known = ~values.isnan() if impossible else torch.isfinite(values)
    if not bool((known & (values <= 1e-3)).all()):
        raise SampleError(f"{name} holds a value that is no log-probability (not finite, or positive)")
    return values


def read_example(sample: Sample, vocab_size: int) -> Example:
    """Unpack a sample.

    Raises:
        SampleError: lengths disagree, an id is outside the vocabulary, or a value is no log-probability.
    """
    prompt = _tensor(sample.prompt_ids, torch.int64, "prompt_ids", (None,))
    response = _tensor(sample.response_ids, torch.int64, "response_ids", (None,))
    length = len(response)
    if not len(prompt) or not length:
        raise SampleError("prompt_ids or response_ids is empty")
    everything = torch.cat([prompt, response])
    if int(everything.min()) < 0 or int(everything.max()) >= vocab_size:
        raise SampleError(f"a token id is outside the student's vocabulary of {vocab_size}")
    return Example(
        turn_id=sample.turn_id,
        prompt_P=prompt,
        response_T=response,
        behaviour_T=_checked_logprobs(sample.behaviour_logprobs, "behaviour_logprobs", (length,)),
        policy_temperature=1.0 if is_greedy(sample.sampling) else sample.sampling.temperature,
        behaviour_temperature=behaviour_temperature(sample.behaviour_space, sample.sampling),
        corrected=is_corrected(sample.behaviour_space, sample.sampling),
        score=sample.score,
        teacher_T=(
            _checked_logprobs(sample.teacher_logprobs, "teacher_logprobs", (length,))
            if sample.teacher_logprobs is not None
            else None
        ),
        hinted_P=_read_hinted(sample, vocab_size),
        **_read_topk(sample, length, vocab_size),
    )


def _read_hinted(sample: Sample, vocab_size: int) -> torch.Tensor | None:
    if sample.hinted_prompt_ids is None:
        return None
    ids = _tensor(sample.hinted_prompt_ids, torch.int64, "hinted_prompt_ids", (None,))
    if not len(ids) or int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise SampleError(f"hinted_prompt_ids is empty or has an id outside the student's vocabulary of {vocab_size}")
    return ids


def _read_topk(sample: Sample, length: int, vocab_size: int) -> dict[str, Any]:
    arrays = (sample.teacher_topk_ids, sample.teacher_topk_logprobs, sample.teacher_tail_logprobs)
    if all(array is None for array in arrays):
        return {"topk_ids_TK": None, "topk_logprobs_TK": None, "tail_T": None}
    ids, logprobs, tail = arrays
    if ids is None or logprobs is None or tail is None:
        raise SampleError("teacher_topk_ids, teacher_topk_logprobs and teacher_tail_logprobs come together")
    ids_TK = _tensor(ids, torch.int64, "teacher_topk_ids", (length, None))
    if ids_TK.numel() and (int(ids_TK.min()) < 0 or int(ids_TK.max()) >= vocab_size):
        raise SampleError(f"a teacher candidate is outside the student's vocabulary of {vocab_size}")
    shape = tuple(ids_TK.shape)
    return {
        "topk_ids_TK": ids_TK,
        "topk_logprobs_TK": _checked_logprobs(logprobs, "teacher_topk_logprobs", shape, impossible=True),
        # No mass outside the candidates is what a whole vocabulary of them leaves.
        "tail_T": _checked_logprobs(tail, "teacher_tail_logprobs", (length,), impossible=True),
    }


@dataclass(frozen=True, slots=True)
class Signals:
    """What all samples of an optimizer step have, whichever of them meet in a micro-batch."""

    estimable: bool
    """What the estimator of advantages needs."""
    taught: bool
    """The teacher's log-probabilities."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences that go through the model together, and their trained rows laid end to end."""

    examples: tuple[Example, ...]
    """Those of the first sequence, then those of the next; several may share a sequence (:mod:`chains`)."""
    input_ids_BS: torch.Tensor
    position_ids_BS: torch.Tensor
    rows_N: torch.Tensor
    """int64 indices of the trained rows into hidden states laid out as ``[S * B]`` (position-major)."""
    targets_N: torch.Tensor
    sample_N: torch.Tensor
    """int64: which of ``examples`` a trained token belongs to."""
    temperatures_N: torch.Tensor
    lengths: tuple[int, ...]
    """Positions of each sequence, without padding."""
    packed: bool
    """Whether the sequences make up one row; else they are padded."""
    candidates_NK: torch.Tensor | None = field(default=None)
    """int64; only when a loss asked for them."""
    reference_N: torch.Tensor | None = field(default=None)
    """float32: the reference's log-probabilities at the sampling temperature; only under a reference KL."""
    signals: Signals | None = field(default=None)
    """Of the step that it belongs to; where that is not known, of these samples."""

    @property
    def num_trained(self) -> int:
        """Trained tokens."""
        return len(self.targets_N)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a micro-batch may hold, and in which form."""

    packed: bool
    """Sequences end to end in one row; else padded to the longest."""
    num_sequences: int
    """Most sequences, where tokens are not counted."""
    num_tokens: int | None
    """Most tokens, padding included; a sequence that alone is longer is a micro-batch of its own."""
    shared: bool = True
    """Samples that others begin with go through the model with these (:mod:`chains`)."""


def limits_from(training: TrainingSection) -> Limits:
    """The configured limits."""
    return Limits(training.packing, training.micro_batch_size, training.micro_batch_tokens, training.share_prefixes)


def _spread(found: Sequence[Chain], count: int) -> list[list[Chain]]:
    """``count`` parts of much the same number of tokens: each sequence, longest first, goes to the lightest part."""
    parts: list[list[Chain]] = [[] for _ in range(count)]
    loads = [0] * count
    for chain in found:
        lightest = loads.index(min(loads))
        parts[lightest].append(chain)
        loads[lightest] += chain.num_tokens
    return parts


def share(examples: Sequence[Example], limits: Limits, rank: int, size: int) -> list[Example]:
    """This data-parallel rank's part; the parts have much the same number of tokens, and none is empty without need."""
    whole = apart(chains(examples, shared=limits.shared), size)
    return [example for chain in _spread(whole, size)[rank] for example in chain.examples]


def divide(examples: Sequence[Example], limits: Limits, *, candidates: bool, device: torch.device) -> list[MicroBatch]:
    """Micro-batches within ``limits``, the largest first; of one number of candidates each, where there are any."""
    alike = _by_candidates(examples) if candidates else [examples]
    groups = [group for part in alike for group in _within(chains(part, shared=limits.shared), limits)]
    return [collate(group, packed=limits.packed, candidates=candidates, device=device) for group in groups]


def _by_candidates(examples: Sequence[Example]) -> list[list[Example]]:
    """Samples that were scored before `topk_opd.top_k` changed have another number of candidates than those after."""
    found: dict[int, list[Example]] = {}
    for example in examples:
        found.setdefault(_candidates(example).shape[-1], []).append(example)
    return [found[count] for count in sorted(found)]


def _within(found: Sequence[Chain], limits: Limits) -> list[list[Chain]]:
    """Sequences, the longest first, in groups within ``limits``."""
    if limits.num_tokens is None:
        return _by_count(found, limits.num_sequences)
    if limits.packed:
        return _by_tokens(found, limits.num_tokens)
    return _by_padded_tokens(found, limits.num_tokens)


def _by_count(found: Sequence[Chain], most: int) -> list[list[Chain]]:
    """Sequences of similar length together."""
    return [list(found[start : start + most]) for start in range(0, len(found), most)]


def _by_tokens(found: Sequence[Chain], budget: int) -> list[list[Chain]]:
    """Rows of much the same length, as few as the budget allows and the greedy spreading finds."""
    alone = [[chain] for chain in found if chain.num_tokens > budget]
    rest = [chain for chain in found if chain.num_tokens <= budget]
    count = math.ceil(sum(chain.num_tokens for chain in rest) / budget)
    while rest:
        rows = _spread(rest, count)
        loads = [sum(chain.num_tokens for chain in row) for row in rows]
        if max(loads) <= budget:
            return alone + [row for _, row in sorted(zip(loads, rows, strict=True), key=lambda item: -item[0])]
        count += 1
    return alone


def _by_padded_tokens(found: Sequence[Chain], budget: int) -> list[list[Chain]]:
    """Sequences of similar length together, as many as the budget takes when padded to the longest."""
    groups: list[list[Chain]] = []
    for chain in found:
        if groups and (len(groups[-1]) + 1) * groups[-1][0].num_tokens <= budget:
            groups[-1].append(chain)
        else:
            groups.append([chain])
    return groups


def collate(found: Sequence[Chain], *, packed: bool = False, candidates: bool, device: torch.device) -> MicroBatch:
    """One micro-batch of these sequences."""
    lengths = [chain.num_positions for chain in found]
    stride, starts = 1, [0, *accumulate(lengths)]
    if not packed:
        stride, starts = len(found), list(range(len(found)))
    placed = [(example, start) for chain, start in zip(found, starts, strict=False) for example in chain.examples]
    examples = tuple(example for example, _ in placed)
    counts = torch.tensor([example.num_trained for example in examples])
    ids_NK = None
    if candidates:
        ids_NK = torch.cat([_candidates(example) for example in examples]).to(device)
    ids_BS, positions_BS = _packed(found) if packed else _padded(found)
    temperatures = torch.tensor([example.policy_temperature for example in examples])
    return MicroBatch(
        examples=examples,
        input_ids_BS=ids_BS.to(device),
        position_ids_BS=positions_BS.to(device),
        rows_N=torch.cat([_positions(example) * stride + start for example, start in placed]).to(device),
        targets_N=torch.cat([example.response_T for example in examples]).to(device),
        sample_N=torch.arange(len(examples)).repeat_interleave(counts).to(device),
        temperatures_N=temperatures.repeat_interleave(counts).to(device),
        lengths=tuple(lengths),
        packed=packed,
        candidates_NK=ids_NK,
    )


def _positions(example: Example) -> torch.Tensor:
    """Those whose hidden states predict the response, int64 ``[T]``."""
    return torch.arange(len(example.prompt_P) - 1, example.num_tokens - 1)


def _packed(found: Sequence[Chain]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and positions, int64 ``[1, S]``."""
    ids = [inputs(chain.examples[0]) for chain in found]
    return torch.cat(ids)[None], torch.cat([torch.arange(len(part)) for part in ids])[None]


def _padded(found: Sequence[Chain]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and positions, int64 ``[B, S]``."""
    ids = pad_sequence([inputs(chain.examples[0]) for chain in found], batch_first=True)
    return ids, torch.arange(ids.shape[1]).expand(len(found), -1)


def _candidates(example: Example) -> torch.Tensor:
    if example.topk_ids_TK is None:
        raise SampleError(f"turn {example.turn_id} has no teacher candidates, which the loss requires")
    return example.topk_ids_TK
