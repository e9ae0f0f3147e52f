"""The trainer as teacher: weights of its own that score an answer behind the hinted prompt.

The teacher is the student as it was at first, as it is now, or its moving average. Owns those weights; which samples
are scored is :mod:`forced`'s business. Every method is called on all ranks alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hintloop_contract.config.schema import Config
from megatron.core import dist_checkpointing

from hintloop_trainer.megatron import adapter, lora, model, weights
from hintloop_trainer.megatron.model import Architecture, PolicyModel
from hintloop_trainer.megatron.parallel import Layout

_PREFIX = "teacher."


def is_in(checkpoint: Path) -> bool:
    """Whether a checkpoint holds a moving average."""
    return any(name.startswith(_PREFIX) for name in dist_checkpointing.load_tensors_metadata(str(checkpoint)))


class OwnTeacher:
    """A second copy of the model. ``decay`` makes it follow the student; without it it stays as it was loaded."""

    def __init__(self, network: PolicyModel, decay: float | None) -> None:
        """Own ``network``, which holds the student's first weights."""
        self.network = network
        self._decay = decay
        self._averages = [parameter.detach().float().clone() for parameter in network.parameters()] if decay else []

    @contextmanager
    def in_force(self) -> Iterator[PolicyModel]:
        """The network to score with, inside; it may be the student's, which is otherwise back afterwards."""
        yield self.network

    @property
    def is_fixed(self) -> bool:
        """Whether the weights stay the student's first ones."""
        return self._decay is None

    @torch.no_grad()
    def follow(self, student: PolicyModel) -> None:
        """Move a little towards the student; to be called after each optimizer step."""
        if self._decay is None:
            return
        for mine, average, theirs in zip(self.network.parameters(), self._averages, student.parameters(), strict=True):
            # Under bfloat16 the optimizer's float32 weights move in steps that bfloat16 cannot hold; so do averages.
            newest = getattr(theirs, "main_param", None)
            newest = theirs if newest is None else newest.view_as(theirs)
            average.lerp_(newest.detach().float(), 1.0 - self._decay)
            mine.copy_(average)

    def changing(self) -> list[torch.Tensor]:
        """Every tensor that :meth:`follow` changes."""
        if self._decay is None:
            return []
        return [*self._averages, *(parameter.data for parameter in self.network.parameters())]

    @torch.no_grad()
    def start_from(self, student: PolicyModel) -> None:
        """Let the moving average begin anew, at the student's weights; nothing for weights that never change."""
        if self._decay is None:
            return
        for mine, average, theirs in zip(self.network.parameters(), self._averages, student.parameters(), strict=True):
            average.copy_(theirs.detach().float())
            mine.copy_(average)

    def sharded(self) -> dict[str, Any]:
        """What a checkpoint has to hold: the moving average; nothing for weights that never change."""
        if self._decay is None:
            return {}
        found: dict[str, Any] = self.network.sharded_state_dict(prefix=_PREFIX)
        for name, average in self._named_averages():
            # The average itself, not what bfloat16 holds of it.
            entry = found[name]
            entry.data = average.view_as(entry.data)
            if hasattr(entry, "dtype"):
                entry.dtype = average.dtype
        return found

    @torch.no_grad()
    def restore(self, loaded: dict[str, Any]) -> None:
        """Take what :meth:`sharded` described, read from a checkpoint."""
        if self._decay is None:
            return
        for (name, average), parameter in zip(self._named_averages(), self.network.parameters(), strict=True):
            average.copy_(loaded[name].view_as(average))
            parameter.copy_(average)

    def _named_averages(self) -> list[tuple[str, torch.Tensor]]:
        names = [f"{_PREFIX}{name}" for name, _ in self.network.named_parameters()]
        return list(zip(names, self._averages, strict=True))


class AdapterTeacher:
    """The teacher of a student with adapters: its model with these off, or with their moving averages; no copy."""

    def __init__(self, student: PolicyModel, decay: float | None) -> None:
        """``student`` has adapters. The averages are of each factor by itself, not of their products."""
        self._student = student
        self._decay = decay
        self._averages = (
            {name: value.detach().float().clone() for name, value in adapter.named(student).items()} if decay else {}
        )

    @property
    def is_fixed(self) -> bool:
        """As :attr:`OwnTeacher.is_fixed`."""
        return self._decay is None

    @contextmanager
    def in_force(self) -> Iterator[PolicyModel]:
        """As :meth:`OwnTeacher.in_force`."""
        if self._decay is None:
            with lora.adapters_off(self._student):
                yield self._student
            return
        own = {name: value.detach().clone() for name, value in adapter.named(self._student).items()}
        self._put(self._averages)
        try:
            yield self._student
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, values: dict[str, torch.Tensor]) -> None:
        for name, parameter in adapter.named(self._student).items():
            parameter.copy_(values[name])

    @torch.no_grad()
    def follow(self, student: PolicyModel) -> None:
        """As :meth:`OwnTeacher.follow`."""
        if self._decay is None:
            return
        for name, parameter in adapter.named(student).items():
            newest = getattr(parameter, "main_param", None)
            newest = parameter if newest is None else newest.view_as(parameter)
            self._averages[name].lerp_(newest.detach().float(), 1.0 - self._decay)

    def changing(self) -> list[torch.Tensor]:
        """As :meth:`OwnTeacher.changing`."""
        return list(self._averages.values())

    @torch.no_grad()
    def start_from(self, student: PolicyModel) -> None:
        """As :meth:`OwnTeacher.start_from`."""
        parameters = adapter.named(student)
        for name, average in self._averages.items():
            average.copy_(parameters[name])

    def sharded(self) -> dict[str, Any]:
        """As :meth:`OwnTeacher.sharded`."""
        found = adapter.sharded(self._student, _PREFIX) if self._averages else {}
        for name, average in self._averages.items():
            entry = found[_PREFIX + name]
            entry.data, entry.dtype = average, average.dtype
        return found

    @torch.no_grad()
    def restore(self, loaded: dict[str, Any]) -> None:
        """As :meth:`OwnTeacher.restore`."""
        for name, average in self._averages.items():
            average.copy_(loaded[_PREFIX + name])


def make(
    config: Config, arch: Architecture, layout: Layout, dtype: torch.dtype, student: PolicyModel
) -> OwnTeacher | AdapterTeacher | None:
    """The configured teacher with the student's first weights; ``None`` when the student itself is the teacher."""
    kind = config.prm.teacher_weights
    if kind == "current":
        return None
    if config.lora.enabled:
        return AdapterTeacher(student, config.prm.ema_decay if kind == "ema" else None)
    network = model.build(arch, layout, dtype, config.model.max_seq_len)
    weights.load(network, arch, layout, config.model.student_model_path)
    return OwnTeacher(network, config.prm.ema_decay if kind == "ema" else None)
