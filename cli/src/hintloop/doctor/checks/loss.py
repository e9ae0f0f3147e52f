"""What training would do: the loss as it is, whether it learns from the teacher, the layout, the memory."""

from __future__ import annotations

import asyncio
import contextlib
import os

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.diagnosis.publishing import ENDED
from hintloop_contract.errors import HintloopError

from hintloop.doctor.checks.refused import cause_of
from hintloop.doctor.finding import Finding, fail, ok, skipped, warn
from hintloop.doctor.look import Look

#: Change of the loss' gradient below which the teacher does not matter, and gradient that is none.
NOTHING = 1e-9
GIB = 2.0**30
#: How many times the whole memory the estimate of a running trainer has to be: it is of samples that are all as long as
#: model.max_seq_len allows, which few runs meet.
NEVER_FITS = 2.0


async def check(look: Look) -> list[Finding]:
    """Custom loss, student, layout and memory, as the trainer would read them."""
    # Importing torch and megatron takes seconds of processor time: not in the loop.
    return await asyncio.to_thread(_setup, look)


def warm() -> None:
    """Import what this check needs, while others wait for engines. What is missing is said by the check."""
    with contextlib.suppress(ModuleNotFoundError):
        from hintloop_trainer import (
            megatron,  # noqa: F401  # before anything of megatron-core
            objective,  # noqa: F401
        )


def _setup(look: Look) -> list[Finding]:
    try:
        from hintloop_trainer import megatron  # noqa: F401  # before anything of megatron-core
        from hintloop_trainer.megatron.model import check_layout, read_architecture
        from hintloop_trainer.megatron.parallel import smallest
    except ModuleNotFoundError as error:
        where = "the trainer's package is not installed here; its own container checks loss, layout and memory at start"
        return [skipped("loss", f"{where} ({error.name} is missing)")]
    findings = _loss(look)
    try:
        arch = read_architecture(look.config.model.student_model_path)
    except HintloopError as error:
        return [*findings, fail("model", str(error), Cause.STUDENT_UNREADABLE)]
    findings.append(ok("model", f"{arch.family}, {arch.num_layers} layers of {arch.hidden_size}"))
    try:
        check_layout(arch, smallest(look.config.training))
    except HintloopError as error:
        return [*findings, fail("layout", str(error), Cause.LAYOUT_DOES_NOT_FIT)]
    return [*findings, _memory(look)]


def _loss(look: Look) -> list[Finding]:
    from hintloop_trainer.errors import LossError
    from hintloop_trainer.losses.loading import load_loss
    from hintloop_trainer.losses.trial import effect
    from hintloop_trainer.objective import objective_from

    try:
        loss = load_loss(look.config.custom_loss, [look.loaded.directory])
        objective = objective_from(look.config, loss)
        found = effect(objective, look.config.topk_opd.top_k)
    except LossError as error:
        return [fail("loss", str(error), _of(str(error)))]
    except HintloopError as error:
        return [fail("loss", str(error), cause_of(str(error)))]
    seen = f"{loss.source}; requires {', '.join(sorted(loss.requires)) or 'advantages'}"
    if found.gradient < NOTHING:
        return [fail("loss", f"{seen}; its gradient is 0 on made-up tokens", Cause.LOSS_MASK_ZERO)]
    if found.by_teacher is not None and found.by_teacher < NOTHING:
        return [fail("loss", f"{seen}; it is the same whatever the teacher says", Cause.LOSS_IGNORES_TEACHER)]
    depends = "" if found.by_teacher is None else ", and depends on the teacher"
    return [ok("loss", f"{seen}; it has a gradient{depends}")]


def _of(message: str) -> Cause:
    if "was not found" in message:
        return Cause.CUSTOM_LOSS_MISSING
    if "defines no compute_loss" in message or "defines compute_loss(" in message or "compute_loss has" in message:
        return Cause.COMPUTE_LOSS_MISSING
    return Cause.LOSS_MASK_ZERO if "gradient does not reach" in message else Cause.CUSTOM_LOSS_UNUSABLE


def _memory(look: Look) -> Finding:
    """Memory of the fewest processes that the layout can do with."""
    from hintloop_trainer.memory.check import report

    mode = look.config.training.memory_check
    if mode == "off":
        return skipped("memory", "training.memory_check is 'off'")
    try:
        found = report(look.config, directory=look.loaded.directory)
    except HintloopError as error:
        # Of a custom loss that cannot be read, which was said before.
        return skipped("memory", str(error))
    peak = f"at most {found.estimate.peak / GIB:.1f} GiB a process"
    rows = [{"change": advice.change, "saves, GiB": round(advice.saves / GIB, 2)} for advice in found.advice]
    if _runs(look):
        # What a running trainer holds is not free, and was free for it: only what never fits is worth a word.
        there = found.capacity.device or float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        if found.estimate.peak > NEVER_FITS * there:
            seen = f"{peak}, which never fits into {there / GIB:.1f} GiB; the running trainer met no such sample yet"
            return fail("memory", seen, Cause.MEMORY_SHORT, rows)
        return ok("memory", peak)
    if not found.shortages:
        return ok("memory", peak)
    said = "; ".join(found.shortages)
    return (fail if mode == "refuse" else warn)("memory", said, Cause.MEMORY_SHORT, rows)


def _runs(look: Look) -> bool:
    status = look.snapshot.trainer if look.snapshot else {}
    return bool(status) and status.get("phase") not in ENDED
