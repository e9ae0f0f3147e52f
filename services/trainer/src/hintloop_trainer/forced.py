"""Forced scores inside the trainer: the student's own candidates, and what the trainer's teacher says of an answer.

Every function is called on all ranks alike and gives everyone the same. Batches are formed as they are for the step,
so that equal weights and equal prompts give equal numbers, bit by bit where they are the prompts of the whole step.
Legend: T = response tokens, K = candidates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from hintloop_contract.messages import Sample
from numpy.typing import NDArray

from hintloop_trainer import batch as batching
from hintloop_trainer.batch import Example, MicroBatch
from hintloop_trainer.megatron import candidates, cpu
from hintloop_trainer.megatron.model import PolicyModel

if TYPE_CHECKING:
    from hintloop_trainer.learner import Learner

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Forced:
    """What the teacher says of one answer, nats at temperature 1: ``logprobs`` float32 [T]; with candidates
    ``topk_ids`` int32 [T, K], ``topk_logprobs`` float32 [T, K] and ``tail_logprobs`` float32 [T]."""

    logprobs: NDArray[np.float32]
    topk_ids: Ids | None = None
    topk_logprobs: NDArray[np.float32] | None = None
    tail_logprobs: NDArray[np.float32] | None = None


def choose(learner: Learner, encoded: Sequence[bytes], top_k: int, num_tokens: int) -> dict[str, Ids]:
    """The student's ``top_k`` likeliest tokens at every response token, int32 [T, K] by turn id.

    ``encoded`` are the samples of one optimizer step. ``num_tokens``: ids from it on are in no tokenizer.
    """

    def read(batch: MicroBatch, hidden_NH: torch.Tensor) -> list[Ids]:
        size = learner.arch.vocab_size
        found = candidates.likeliest(learner.model, hidden_NH, size, top_k, num_tokens=num_tokens)
        return [part.to(torch.int32).cpu().numpy() for part in _split(batch, found.ids_NK)]

    examples = _examples(learner, encoded)
    return _everyones(learner, examples, read, network=learner.replicated, with_candidates=False)


def teach(
    learner: Learner, encoded: Sequence[bytes], top_k: int, chosen: Mapping[str, Ids] | None = None
) -> dict[str, Forced]:
    """What the trainer's teacher says of each answer behind its hinted prompt, by turn id.

    ``encoded`` are the samples of one optimizer step; those without a hinted prompt are left out. ``top_k`` candidates
    are the teacher's own (0: none), unless they are ``chosen``.
    """
    hinted = [
        dataclasses.replace(example, prompt_P=example.hinted_P, topk_ids_TK=_chosen(chosen, example))
        for example in _examples(learner, encoded)
        if example.hinted_P is not None
    ]
    with _teacher(learner) as (network, model):
        read = partial(_taught, learner, model, top_k)
        return _everyones(learner, hinted, read, network=network, with_candidates=chosen is not None)


@contextmanager
def _teacher(learner: Learner) -> Iterator[tuple[Any, PolicyModel]]:
    """The network to run, and the model whose head scores."""
    if learner.own_teacher is None:
        yield learner.replicated, learner.model
        return
    with learner.own_teacher.in_force() as network:
        yield network, network


def _taught(
    learner: Learner, model: PolicyModel, top_k: int, batch: MicroBatch, hidden_NH: torch.Tensor
) -> list[Forced]:
    scores = learner.score_rows(model, batch, hidden_NH)
    columns: list[torch.Tensor | None] = [scores.logprobs_N, None, None, None]
    ids_NK, logprobs_NK = batch.candidates_NK, scores.candidates_NK
    if ids_NK is None and top_k:
        best = candidates.likeliest(model, hidden_NH, learner.arch.vocab_size, top_k)
        ids_NK, logprobs_NK = best.ids_NK, best.logprobs_NK
    if ids_NK is not None and logprobs_NK is not None:
        columns[1:] = [ids_NK.to(torch.int32), logprobs_NK, candidates.log_rest(logprobs_NK)]
    return _forced(batch, columns)


def _examples(learner: Learner, encoded: Sequence[bytes]) -> list[Example]:
    decoder = msgspec.msgpack.Decoder(Sample)
    return [batching.read_example(decoder.decode(item), learner.arch.vocab_size) for item in encoded]


def _chosen(chosen: Mapping[str, Ids] | None, example: Example) -> torch.Tensor | None:
    return None if chosen is None else torch.from_numpy(chosen[example.turn_id].astype(np.int64))


def _split(batch: MicroBatch, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows of a micro-batch by sample."""
    return torch.split(values, [example.num_trained for example in batch.examples])


def _forced(batch: MicroBatch, columns: Sequence[torch.Tensor | None]) -> list[Forced]:
    parts = [
        [None] * len(batch.examples) if column is None else [part.cpu().numpy() for part in _split(batch, column)]
        for column in columns
    ]
    return [Forced(*row) for row in zip(*parts, strict=True)]


def _everyones(
    learner: Learner,
    examples: Sequence[Example],
    read: Callable[[MicroBatch, torch.Tensor], list[Any]],
    *,
    network: Any,
    with_candidates: bool,
) -> dict[str, Any]:
    """Results by turn id, of all data-parallel ranks' shares."""
    layout = learner.layout
    mine = batching.share(examples, learner.limits, layout.dp_rank, layout.dp_size)
    batches = batching.divide(mine, learner.limits, candidates=with_candidates, device=cpu.device()) if mine else []
    # Ranks that share experts go through the model together, whoever of them has something to read.
    meeting = bool(examples) and layout.ep_size > 1
    rows = learner.read_rows(batches, read, network) if batches or meeting else []
    found = {
        example.turn_id: item
        for batch, items in zip(batches, rows, strict=False)
        for example, item in zip(batch.examples, items, strict=True)
    }
    if layout.world_size == 1:
        return found
    parts: list[dict[str, Any]] = [{}] * layout.world_size
    dist.all_gather_object(parts, found if layout.reports else {})
    return {turn_id: item for part in parts for turn_id, item in part.items()}
