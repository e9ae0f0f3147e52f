"""Redis: whether it is there, and whether it keeps what it is given."""

from __future__ import annotations

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import DependencyError

from hintloop import funnel
from hintloop.doctor.finding import Finding, fail, ok, warn
from hintloop.doctor.look import Look


async def check(look: Look) -> list[Finding]:
    """Findings of Redis; takes the snapshot that later checks read."""
    try:
        look.snapshot = await funnel.take(look.broker)
        problems = await look.broker.durability_problems()
    except DependencyError as error:
        return [fail("redis", error.detail, Cause.REDIS_AWAY)]
    findings = [ok("redis", "answers")]
    for problem in problems:
        cause = Cause.REDIS_MAY_EVICT if "maxmemory" in problem else Cause.REDIS_NOT_DURABLE
        findings.append(warn("durability", problem, cause))
    dead = look.snapshot.streams["dead"].length
    if dead:
        findings.append(warn("dead messages", await _dead(look, dead), Cause.DEAD_LETTERS))
    return findings


async def _dead(look: Look, count: int) -> str:
    stages = {
        name.split(":")[0]: n for name, n in (look.snapshot.drops if look.snapshot else {}).items() if ":dead" in name
    }
    where = ", ".join(f"{number} at {stage}" for stage, number in stages.items())
    return f"{count} message(s) set aside after repeated failures" + (f" ({where})" if where else "")
