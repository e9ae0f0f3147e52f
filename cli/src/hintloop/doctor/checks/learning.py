"""The learning signal: advantages that are nothing, of one sign, or too large; engine and trainer that disagree."""

from __future__ import annotations

import math

from hintloop_contract.diagnosis.causes import Cause

from hintloop.doctor.finding import Finding, fail, not_yet, ok, skipped, warn
from hintloop.doctor.look import Look

#: Optimizer steps below which the signal is not judged.
ENOUGH_STEPS = 10
#: |A| below this, in mean and deviation, is rounding.
NOTHING = 1e-4
#: Deviation of per-token advantages past which no hint explains them, nats.
EXPLODED = 10.0
#: Share of one sign past which there is no other.
ALL = 0.999
#: Mean absolute difference of engine and trainer per token, nats, by dtype of the published weights.
DRIFT = {"float32": 0.01, "bfloat16": 0.1}


async def check(look: Look) -> list[Finding]:
    """Findings of the trainer's figures."""
    if look.snapshot is None:
        return [skipped("advantages", "Redis is away")]
    figures = {name: _number(value) for name, value in look.snapshot.trainer.items()}
    steps = figures.get("step") or 0
    mean, std = figures.get("run_advantage_mean"), figures.get("run_advantage_std")
    if not steps or mean is None or std is None:
        return [not_yet("advantages", "no step was made since the trainer started")]
    positive, negative = (
        figures.get("run_advantage_share_positive") or 0,
        figures.get("run_advantage_share_negative") or 0,
    )
    seen = f"mean {mean:+.3f}, deviation {std:.3f}, {positive:.0%} above and {negative:.0%} below 0, step {steps:.0f}"
    findings = [_advantages(seen, mean, std, max(positive, negative), steps)]
    drift = figures.get("engine_difference_abs_mean")
    if drift is not None:
        findings.append(_drift(drift, DRIFT[look.config.model.dtype]))
    return findings


def _advantages(seen: str, mean: float, std: float, one_sign: float, steps: float) -> Finding:
    if abs(mean) < NOTHING and std < NOTHING:
        return fail("advantages", seen, Cause.ADVANTAGES_ALL_ZERO)
    if std > EXPLODED:
        return fail("advantages", seen, Cause.ADVANTAGES_EXPLODE)
    if one_sign >= ALL:
        return warn("advantages", seen, Cause.ADVANTAGES_ONE_SIGN)
    return ok("advantages", seen) if steps >= ENOUGH_STEPS else not_yet("advantages", f"{seen}; nothing wrong so far")


def _drift(drift: float, allowed: float) -> Finding:
    seen = f"mean |difference| {drift:.4f} nats a token (allowed {allowed})"
    if drift > allowed:
        return warn("engine against trainer", seen, Cause.ENGINE_DRIFT)
    return ok("engine against trainer", seen)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
