"""The trainer: whether its loss and its layout can be used, whether it runs, and what the engines serve of it."""

from __future__ import annotations

import asyncio

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import HintloopError

from hintloop.doctor.finding import Finding, fail, ok, skipped, warn
from hintloop.doctor.look import Look

#: What the trainer's phase ends with when something that it needs keeps failing.
FAILING = " failed"


async def check_setup(look: Look) -> list[Finding]:
    """Custom loss and layout, as the trainer would read them."""
    # Importing torch and megatron takes seconds of processor time: not in the loop.
    return await asyncio.to_thread(_setup, look)


def _setup(look: Look) -> list[Finding]:
    from hintloop_trainer import megatron  # noqa: F401  # before anything of megatron-core
    from hintloop_trainer.losses.loading import load_loss
    from hintloop_trainer.megatron.model import check_layout, read_architecture
    from hintloop_trainer.megatron.parallel import smallest

    findings = []
    try:
        loss = load_loss(look.config.custom_loss, [look.loaded.directory])
        findings.append(ok("loss", f"{loss.source}; requires {', '.join(sorted(loss.requires)) or 'advantages'}"))
    except HintloopError as error:
        findings.append(fail("loss", str(error), Cause.CUSTOM_LOSS_UNUSABLE))
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


def _memory(look: Look) -> Finding:
    """Memory of the fewest processes that the layout can do with."""
    from hintloop_trainer.memory.check import report

    try:
        found = report(look.config, directory=look.loaded.directory)
    except HintloopError as error:
        # Of a custom loss that cannot be read, which was said before.
        return skipped("memory", str(error))
    peak = f"at most {found.estimate.peak / 2**30:.1f} GiB a process"
    running = look.snapshot is not None and look.snapshot.trainer.get("phase", "stopped") not in ("stopped", "failed")
    if not found.shortages or running:
        # What a running trainer holds is not free, and was free for it.
        return ok("memory", peak)
    rows = [{"change": advice.change, "saves, GiB": round(advice.saves / 2**30, 2)} for advice in found.advice]
    return warn("memory", "; ".join(found.shortages), Cause.MEMORY_SHORT, rows)


async def check_running(look: Look) -> list[Finding]:
    """What the trainer says of itself."""
    if look.snapshot is None:
        return [skipped("trainer", "Redis is away")]
    status = look.snapshot.trainer
    if not status:
        return [fail("trainer", "it never reported", Cause.TRAINER_AWAY)]
    phase, detail = status.get("phase", ""), status.get("detail", "")
    seen = f"{phase}{f': {detail}' if detail else ''}; step {status.get('step', '?')}"
    if phase in ("stopped", "failed"):
        return [fail("trainer", seen, Cause.TRAINER_AWAY)]
    if phase.endswith(FAILING):
        return [fail("trainer", seen, Cause.TRAINER_STUCK)]
    if phase == "paused":
        return [warn("trainer", seen, Cause.TRAINING_PAUSED)]
    return [ok("trainer", seen)]


async def check_published(look: Look) -> list[Finding]:
    """Whether every engine serves the released version."""
    if look.snapshot is None:
        return [skipped("weights", "Redis is away")]
    current, updating = look.snapshot.weights.current, look.snapshot.weights.updating
    steps = int(look.snapshot.trainer.get("step", "0") or 0)
    if current is None:
        if steps:
            return [fail("weights", f"{steps} steps, no version released", Cause.WEIGHTS_NEVER_PUBLISHED)]
        return [skipped("weights", "no version is released yet")]
    if updating is not None:
        return [ok("weights", f"version {current}; {updating} is being published")]
    behind = {url: version or "none" for url, version in look.snapshot.engines.items() if version != str(current)}
    if behind:
        where = ", ".join(f"{url} serves {version}" for url, version in behind.items())
        return [fail("weights", f"version {current} is released; {where}", Cause.ENGINE_BEHIND)]
    return [ok("weights", f"version {current} on {len(look.snapshot.engines)} engine(s)")]
