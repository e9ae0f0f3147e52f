"""The reference policy: the student as it was at first, to which a KL holds it.

Owns which weights those are and what they say of a batch; the KL itself is the :mod:`objective`'s. Every method is
called on all ranks alike.
Legend: N = trained tokens of a micro-batch, H = hidden size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from hintloop_trainer.batch import MicroBatch
from hintloop_trainer.megatron import lora, model, weights
from hintloop_trainer.megatron.model import PolicyModel
from hintloop_trainer.own_teacher import OwnTeacher

if TYPE_CHECKING:
    from hintloop_trainer.learner import Learner


class Reference:
    """What the student's first weights say of the tokens that are trained."""

    def __init__(self, learner: Learner, frozen: PolicyModel) -> None:
        """``frozen`` is a copy of the first weights, which nothing trains."""
        self._learner = learner
        self._frozen = frozen

    @contextmanager
    def policy(self) -> Iterator[tuple[Any, PolicyModel]]:
        """The first weights, in force inside: the network that is run, and the model whose head scores.

        All that asks the reference asks it through here, so that weights which are the student's own, with something
        switched off for the time being, can stand in for the copy.
        """
        yield self._frozen, self._frozen

    def beside(self, batches: list[MicroBatch]) -> list[MicroBatch]:
        """``batches`` with ``reference_N``, at the sampling temperatures; as they are on all stages but the last."""
        learner = self._learner
        with self.policy() as (network, head):

            def read(batch: MicroBatch, hidden_NH: torch.Tensor) -> torch.Tensor:
                return learner.score_rows(head, batch, hidden_NH).tempered_N.detach()

            found: list[torch.Tensor] = learner.read_rows(batches, read, network)
        if not found:
            return batches
        return [dataclasses.replace(batch, reference_N=row) for batch, row in zip(batches, found, strict=True)]


class Unadapted(Reference):
    """The student itself with its adapters off: no copy."""

    def __init__(self, learner: Learner) -> None:
        """``learner``'s student has adapters."""
        super().__init__(learner, learner.model)

    @contextmanager
    def policy(self) -> Iterator[tuple[Any, PolicyModel]]:
        """As :meth:`Reference.policy`."""
        with lora.adapters_off(self._frozen):
            yield self._frozen, self._frozen


def make(learner: Learner) -> Reference | None:
    """The reference of ``learner``'s student; ``None`` where no KL is asked for.

    Where the trainer's own teacher holds the first weights and keeps them, they are held once.
    """
    if not learner.objective.kl_coef:
        return None
    if learner.config.lora.enabled:
        return Unadapted(learner)
    teacher = learner.own_teacher
    if isinstance(teacher, OwnTeacher) and teacher.is_fixed:
        return Reference(learner, teacher.network)
    network = model.build(learner.arch, learner.layout, learner.dtype, learner.config.model.max_seq_len)
    weights.load(network, learner.arch, learner.layout, learner.config.model.student_model_path)
    return Reference(learner, network)
