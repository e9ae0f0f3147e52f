"""A loss tried on made-up tokens before anything is trained: what is wrong with it shows at start, not after a while.

Legend: N = tokens, V = a small vocabulary, K = candidates.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hintloop_trainer import batch as batching
from hintloop_trainer.batch import Example, MicroBatch
from hintloop_trainer.chains import alone
from hintloop_trainer.errors import LossError
from hintloop_trainer.megatron.logprobs import Scores

if TYPE_CHECKING:
    from hintloop_trainer.objective import Evaluation, Objective

_LENGTHS = (5, 3)
_SPARE = 8


@dataclass(frozen=True, slots=True)
class Effect:
    """What a loss does on made-up tokens: the largest magnitude of its ``gradient``, and of what changes in it when the
    teacher says something else (``by_teacher``; ``None`` where no teacher is asked)."""

    gradient: float
    by_teacher: float | None


def effect(objective: Objective, top_k: int) -> Effect:
    """Whether ``objective`` learns anything, and from the teacher.

    Raises:
        LossError: as :func:`tried`.
    """
    _, gradient_NV = _differentiated(objective, top_k, teacher_seed=None, on_policy=True)
    largest = float(gradient_NV.abs().max())
    if not (objective.wants_teacher or objective.wants_candidates):
        return Effect(largest, None)
    _, other_NV = _differentiated(objective, top_k, teacher_seed=1, on_policy=True)
    return Effect(largest, float((gradient_NV - other_NV).abs().max()))


def tried(objective: Objective, top_k: int) -> Evaluation:
    """What ``objective`` makes of two answers of random tokens, ratio 1, with what its loss requires and no more.

    Raises:
        LossError: the loss does not do what is expected of it; the message says what, and the fix.
    """
    found, gradient_NV = _differentiated(objective, top_k, teacher_seed=None)
    if objective.loss.custom and not bool(gradient_NV.isfinite().all()):
        raise LossError(
            f"loss {objective.loss.source}: its gradient is not finite on made-up tokens; look for a root, an absolute "
            "value's root or a quotient at 0, also where torch.where leaves its result out"
        )
    return found


def _differentiated(
    objective: Objective, top_k: int, teacher_seed: int | None, *, on_policy: bool = False
) -> tuple[Evaluation, torch.Tensor]:
    """The evaluation, and its gradient of the student's logits ``[N, V]``.

    ``on_policy``: the student itself made the answers, so that importance weights are 1 before they are bounded.
    """
    # On the CPU: before the ranks have chosen their GPUs, each would take memory of the first one.
    device = torch.device("cpu")
    generator = torch.Generator().manual_seed(0)
    # Far from any edge: what fails here fails on everything.
    logits_NV = torch.randn(sum(_LENGTHS), top_k + _SPARE, generator=generator).to(device).requires_grad_()
    batch = _batch(objective, top_k, generator, device, teacher_seed)
    scores = _scores(batch, logits_NV)
    if on_policy:
        parts = torch.split(scores.tempered_N.detach(), list(_LENGTHS))
        pairs = zip(batch.examples, parts, strict=True)
        batch = dataclasses.replace(
            batch, examples=tuple(dataclasses.replace(example, behaviour_T=part) for example, part in pairs)
        )
    found = objective.evaluate(batch, scores, None)
    (gradient_NV,) = torch.autograd.grad(found.total, logits_NV, allow_unused=True)
    if gradient_NV is None:
        raise LossError(
            f"loss {objective.loss.source}: its gradient does not reach the student; compute it from logprobs_N, "
            "tempered_N or candidates_NK"
        )
    return found, gradient_NV


def _scores(batch: MicroBatch, logits_NV: torch.Tensor) -> Scores:
    logprobs_NV = logits_NV.log_softmax(-1)
    tempered_NV = (logits_NV / batch.temperatures_N[:, None]).log_softmax(-1)
    ids_NK = batch.candidates_NK
    return Scores(
        logprobs_NV.gather(-1, batch.targets_N[:, None]).squeeze(-1),
        tempered_NV.gather(-1, batch.targets_N[:, None]).squeeze(-1),
        -(logprobs_NV.exp() * logprobs_NV).sum(-1),
        None if ids_NK is None else logprobs_NV.gather(-1, ids_NK),
    )


def _batch(
    objective: Objective, top_k: int, generator: torch.Generator, device: torch.device, teacher_seed: int | None
) -> MicroBatch:
    examples = [
        _example(objective, number, length, top_k, generator, teacher_seed) for number, length in enumerate(_LENGTHS)
    ]
    batch = batching.collate(alone(examples), candidates=objective.wants_candidates, device=device)
    if not objective.kl_coef:
        return batch
    return dataclasses.replace(batch, reference_N=torch.randn(sum(_LENGTHS), generator=generator).to(device) - 4.0)


def _example(
    objective: Objective, number: int, length: int, top_k: int, generator: torch.Generator, teacher_seed: int | None
) -> Example:
    behaviour_TV = teacher_TV = torch.randn(length, top_k + _SPARE, generator=generator).log_softmax(-1)
    response_T = torch.randint(0, top_k + _SPARE, (length,), generator=generator)
    if teacher_seed is not None:
        other = torch.Generator().manual_seed(teacher_seed + number)
        teacher_TV = torch.randn(length, top_k + _SPARE, generator=other).log_softmax(-1)
    best = teacher_TV.topk(top_k, -1) if objective.wants_candidates else None
    fields: dict[str, Any] = {"topk_ids_TK": None, "topk_logprobs_TK": None, "tail_T": None}
    if best is not None:
        fields = {
            "topk_ids_TK": best.indices,
            "topk_logprobs_TK": best.values,
            "tail_T": torch.log1p(-best.values.exp().sum(-1)),
        }
    scored = objective.wants_scores
    return Example(
        turn_id=f"made-up-{number}",
        prompt_P=torch.zeros(2, dtype=torch.int64),
        response_T=response_T,
        behaviour_T=behaviour_TV.mean(-1),
        policy_temperature=0.7,
        behaviour_temperature=0.7,
        corrected=True,
        score=(1, -1)[number] if scored else None,
        teacher_T=teacher_TV.gather(-1, response_T[:, None]).squeeze(-1) if objective.wants_teacher else None,
        **fields,
    )
