"""The learning signal: what the figures of the steps show, and how far the method's own measure has moved."""

from __future__ import annotations

from hintloop_contract.diagnosis import learning
from hintloop_contract.diagnosis.figures import Expected, Seen
from hintloop_contract.diagnosis.learning import ENOUGH_STEPS
from hintloop_contract.diagnosis.recognise import LEARNING, recognise

from hintloop.doctor.finding import Finding, not_yet, of, ok, skipped
from hintloop.doctor.look import Look

#: Loss whose course says nothing, nats: the mean of advantage times ratio, and the ratio is 1 at the first pass.
FLAT_LOSS = (
    "the loss itself need not fall: at a ratio of 1 it is minus the mean advantage of each new batch, and its gradient "
    "is what teaches"
)


async def check(look: Look) -> list[Finding]:
    """Findings of the trainer's figures."""
    seen, expected = look.seen, look.expected
    if seen is None or expected is None:
        return [skipped("advantages", "Redis is away" if seen is None else "the method cannot be read")]
    if not seen.step:
        return [not_yet("advantages", "no step was made since the trainer started")]
    findings = of("figures", recognise(seen, expected, LEARNING))
    if not findings:
        findings = [_advantages(seen)]
        drift = seen.figure("engine_difference_abs_mean")
        if drift is not None:
            findings.append(ok("engine against trainer", f"mean |difference| {drift:.2g} nats a token"))
    return [*findings, _signal(seen, expected)]


def _advantages(seen: Seen) -> Finding:
    mean, std = seen.figure("run_advantage_mean"), seen.figure("run_advantage_std")
    if mean is None or std is None:
        return ok("advantages", "this loss has none")
    positive, negative = seen.figure("run_advantage_share_positive"), seen.figure("run_advantage_share_negative")
    said = f"mean {mean:+.3f}, deviation {std:.3f}, {positive or 0:.0%} above and {negative or 0:.0%} below 0"
    return ok("advantages", f"{said}, step {seen.step}")


def _signal(seen: Seen, expected: Expected) -> Finding:
    """The method's own measure over the steps."""
    name, figure, _ = learning.measured(expected)
    moved = learning.movement(seen, expected)
    if moved is None:
        known = len(seen.series(figure))
        newest = seen.figure(figure)
        now = "" if newest is None else f"; now {newest:.4f}"
        return not_yet("learning signal", f"{name}: {known} of {ENOUGH_STEPS} steps that are needed to tell{now}")
    course = f"{name}: {moved.before:.4f} in the first third of {moved.num_steps} steps, {moved.now:.4f} in the last"
    if moved.improves:
        return ok("learning signal", f"{course}; it moves as it should")
    losses = seen.series("loss")
    loss = f" (loss {losses[0]:.3f} to {losses[-1]:.3f}: {FLAT_LOSS})" if losses else ""
    return ok("learning signal", f"{course}; no more than chance yet (standard error {moved.error:.4f}){loss}")
