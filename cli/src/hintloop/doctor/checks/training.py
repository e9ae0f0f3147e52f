"""The trainer: whether it runs, and what the engines serve of what it made."""

from __future__ import annotations

from hintloop_contract.diagnosis import publishing
from hintloop_contract.diagnosis.causes import Cause

from hintloop.doctor.checks import redis, serving
from hintloop.doctor.finding import Finding, fail, of, ok, skipped
from hintloop.doctor.look import Look


async def check_running(look: Look) -> list[Finding]:
    """What the trainer says of itself."""
    if look.seen is None or look.expected is None:
        return [skipped("trainer", "Redis is away" if look.seen is None else "the method cannot be read")]
    if look.fresh:
        await redis.take(look)
    status = look.seen.trainer
    if not status:
        return [fail("trainer", "it never reported", Cause.TRAINER_AWAY)]
    phase, detail = status.get("phase", ""), status.get("detail", "")
    findings = of("trainer", [publishing.trainer(look.seen, look.expected)])
    seen = f"{phase}{f': {detail}' if detail else ''}; step {status.get('step', '?')}"
    return [*(findings or [ok("trainer", seen)]), *of("gate", [publishing.gate(look.seen, look.expected)])]


async def check_published(look: Look) -> list[Finding]:
    """Whether every engine serves the released version: by its word, by its scores, and with a fresh cache."""
    if look.seen is None or look.expected is None:
        return [skipped("weights", "Redis is away" if look.seen is None else "the method cannot be read")]
    if look.fresh:
        await redis.take(look)
    current, updating = look.seen.weights.current, look.seen.weights.updating
    findings = of("weights", [publishing.unpublished(look.seen, look.expected)])
    if current is None:
        return findings or [skipped("weights", "no version is released yet")]
    scored = await serving.scores(look)
    findings += [finding for finding in scored if finding.cause is not None]
    findings += of("weights", [publishing.engines(look.seen, look.expected)])
    if not findings:
        going = "" if updating is None else f"; {updating} is being published"
        findings = [ok("weights", f"version {current} on {len(look.expected.engine_urls)} engine(s){going}")]
    return [*findings, *(finding for finding in scored if finding.cause is None), *await serving.caches(look)]
