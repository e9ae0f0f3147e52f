"""Redis: whether it is there, keeps what it is given, and has room; takes the look that later checks read."""

from __future__ import annotations

from hintloop_contract.diagnosis import publishing, traffic
from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.diagnosis.figures import Seen
from hintloop_contract.diagnosis.looking import look as look_at
from hintloop_contract.diagnosis.looking import recent_of
from hintloop_contract.errors import DependencyError, HintloopError

from hintloop import funnel
from hintloop.doctor.finding import Finding, fail, of, ok, warn
from hintloop.doctor.look import Look


async def check(look: Look) -> list[Finding]:
    """Findings of Redis; what it says of the deployment is kept for later checks."""
    try:
        seen = await take(look)
        look.fresh = True
        problems = await look.broker.durability_problems()
    except DependencyError as error:
        return [fail("redis", error.detail, Cause.REDIS_AWAY)]
    except HintloopError as error:
        return [fail("redis", str(error), Cause.CONFIGURATION_INVALID)]
    findings = [ok("redis", f"answers; {seen.redis.used / 2**20:.0f} MiB in use")]
    if look.expected is not None:
        findings += of("room", [traffic.redis_full(seen, look.expected)])
        findings += of("dead messages", [publishing.dead(seen, look.expected)])
    for problem in problems:
        cause = Cause.REDIS_MAY_EVICT if "maxmemory" in problem else Cause.REDIS_NOT_DURABLE
        findings.append(warn("durability", problem, cause))
    return findings


async def take(look: Look) -> Seen:
    """Look at Redis now, for this check and those that follow: what is said there changes meanwhile.

    Raises:
        DependencyError: Redis is away.
    """
    look.snapshot = await funnel.take(look.broker)
    look.recent = await recent_of(look.broker)
    look.seen = await look_at(look.broker, look.recent)
    return look.seen
