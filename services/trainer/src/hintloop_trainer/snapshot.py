"""The learner as it was at the last release, in memory: weights, optimizer, moving average and generators of a rank.

A checkpoint of every release would take longer than its step; a copy takes a fraction of a second, and as much host
memory as weights that are trained and their optimizer take together. Every method is called on all ranks alike.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from hintloop_trainer import generators
from hintloop_trainer.learner import Learner
from hintloop_trainer.megatron import adapter, optimizer, weights


class Snapshot:
    """Keeps one state of a learner and puts the learner back into it."""

    def __init__(self, learner: Learner) -> None:
        """Nothing is kept until :meth:`keep`."""
        self._learner = learner
        self._values: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By the address of its memory: a tensor that training changes, and its value."""
        self._moments: list[dict[torch.Tensor, dict[str, Any]]] = []
        self._groups: list[list[dict[str, Any]]] = []
        self._generators: dict[str, Any] = {}

    @torch.no_grad()
    def keep(self) -> None:
        """Keep the state of this moment in place of the one before."""
        before = self._values
        self._values = {}
        for tensor in self._changing():
            if not tensor.numel() or tensor.data_ptr() in self._values:
                continue
            _, value = before.get(tensor.data_ptr(), (tensor, None))
            if value is None or value.shape != tensor.shape or value.dtype != tensor.dtype:
                value = torch.empty_like(tensor, device="cpu")
            self._values[tensor.data_ptr()] = (tensor, value.copy_(tensor))
        optimizers = optimizer.torch_optimizers(self._learner.optimizer)
        self._moments = [
            {parameter: dict(entries) for parameter, entries in inner.state.items()} for inner in optimizers
        ]
        self._groups = [
            [{key: value for key, value in group.items() if key != "params"} for group in inner.param_groups]
            for inner in optimizers
        ]
        self._generators = copy.deepcopy(generators.states())

    @torch.no_grad()
    def go_back(self) -> None:
        """Put the learner back into the state that is kept."""
        for tensor, value in self._values.values():
            tensor.copy_(value)
        for inner, moments, groups in zip(
            optimizer.torch_optimizers(self._learner.optimizer), self._moments, self._groups, strict=True
        ):
            for parameter in list(inner.state):
                # Moments of before the first step are none; the tensors that were there have their values back.
                if parameter in moments:
                    inner.state[parameter].update(moments[parameter])
                else:
                    del inner.state[parameter]
            for group, kept in zip(inner.param_groups, groups, strict=True):
                for key in group.keys() - kept.keys() - {"params"}:
                    del group[key]
                group.update(kept)
        generators.restore(self._generators)

    def _changing(self) -> Iterator[torch.Tensor]:
        """Every tensor that a step changes."""
        learner = self._learner
        for parameter in learner.model.parameters():
            if parameter.requires_grad:
                yield parameter.data
        yield from learner.model.buffers()
        for inner in optimizer.torch_optimizers(learner.optimizer):
            for group in inner.param_groups:
                yield from (parameter.data for parameter in group["params"])
            for entries in inner.state.values():
                yield from (value for value in entries.values() if isinstance(value, torch.Tensor))
        if learner.own_teacher is not None:
            yield from learner.own_teacher.changing()


@torch.no_grad()
def adopt(learner: Learner, directory: Path) -> None:
    """Take the weights of a released version, with an optimizer that knows of no step yet.

    Raises:
        ModelError: they are not of this model, or not of its adapters.
    """
    if learner.config.lora.as_adapter:
        adapter.load(learner.model, learner.layout, directory)
    else:
        weights.load(learner.model, learner.arch, learner.layout, str(directory))
    optimizer.begin_anew(learner.optimizer)
    if learner.own_teacher is not None:
        learner.own_teacher.start_from(learner.model)
