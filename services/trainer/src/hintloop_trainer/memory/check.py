"""Compares the estimate with what is there: at the trainer's start, on `--estimate`, and for whoever asks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import structlog
from hintloop_contract.config.schema import Config

from hintloop_trainer.errors import NoRoomError
from hintloop_trainer.memory.advice import Advice, advise
from hintloop_trainer.memory.capacity import Capacity, measure
from hintloop_trainer.memory.estimate import GIB, Estimate, estimate, plan_for
from hintloop_trainer.memory.table import render


@dataclass(frozen=True, slots=True)
class Report:
    """What a configuration takes, what there is, and what to turn down."""

    estimate: Estimate
    capacity: Capacity
    advice: list[Advice]

    @property
    def shortages(self) -> list[str]:
        """Where there is not enough, in words; empty when it fits."""
        needed, there = self.estimate, self.capacity
        found = []
        on_device = max(needed.peak, needed.leading_peak)
        if there.device is not None and on_device > there.device:
            found.append(f"the device has {there.device / GIB:.1f} GiB free, {on_device / GIB:.1f} are needed")
        on_host = there.processes * (needed.host_peak if there.device is not None else needed.peak)
        on_host += 0.0 if needed.gate_on_device else needed.gate_process
        if on_host > there.host:
            gate = " and the gate's" if needed.gate_process and not needed.gate_on_device else ""
            found.append(
                f"this host has {there.host / GIB:.1f} GiB free, {on_host / GIB:.1f} are needed by "
                f"{there.processes} process(es){gate}"
            )
        return found

    @property
    def text(self) -> str:
        """The table, for people."""
        return render(self.estimate, self.capacity, self.advice if self.shortages else self.advice[:3])


def report(config: Config, *, directory: Path | None = None, world_size: int | None = None) -> Report:
    """The estimate of ``config`` against this machine; reads the student's ``config.json`` and builds nothing.

    ``directory``: the configuration's own, where a custom loss is looked up. ``world_size``: the trainer's processes;
    from torchrun's environment when not given, else as few as the layout needs.

    Raises:
        ConfigError: the student or the custom loss cannot be read, or is not supported.
    """
    plan = plan_for(config, directory=directory, world_size=world_size)
    return Report(estimate(plan), measure(plan), advise(plan))


def check(config: Config, directory: Path, *, leading: bool) -> None:
    """Tell what memory ``config`` takes; what follows when there is less, `training.memory_check` says.

    To be called on every rank, with its device chosen and nothing built; the ``leading`` one speaks.

    Raises:
        NoRoomError: there is less, and it is `refuse`.
    """
    mode = config.training.memory_check
    if mode == "off":
        return
    found = report(config, directory=directory)
    log = structlog.get_logger()
    if leading:
        log.info(found.text)
    if not found.shortages:
        return
    message = f"not enough memory for samples as long as model.max_seq_len allows: {'; '.join(found.shortages)}"
    if mode == "refuse":
        best = ", or ".join(item.change for item in found.advice[:3]) or "a smaller model"
        raise NoRoomError(f'{message}; set {best}, or training.memory_check = "warn"')
    if leading:
        log.warning(message)
