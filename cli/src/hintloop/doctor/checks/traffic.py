"""What became of the turns of late, the gaps between them, and the alarms that stand."""

from __future__ import annotations

from dataclasses import replace

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.diagnosis.figures import Gaps, Seen
from hintloop_contract.diagnosis.recognise import TRAFFIC, recognise
from hintloop_contract.diagnosis.traffic import ENOUGH_ALIKE, ENOUGH_TURNS, MOST
from hintloop_contract.errors import DependencyError

from hintloop.doctor.finding import Finding, Outcome, fail, not_yet, of, ok, skipped
from hintloop.doctor.look import Look

#: Undecided requests that are looked at.
MOST_PEEKED = 100


async def check(look: Look) -> list[Finding]:
    """Findings of the funnel."""
    if look.seen is None or look.expected is None or look.snapshot is None:
        return [skipped("turns", "Redis is away" if look.seen is None else "the method cannot be read")]
    seen = of_late(look.seen, look)
    steps = ", ".join(f"{count} {step}" for step, count in seen.funnel.items() if count)
    if not look.seen.funnel.get("captured"):
        return [
            not_yet("turns", "no request was captured; point the agent's base URL at the proxy"),
            *_alarms(look, []),
        ]
    found = recognise(seen, look.expected, TRAFFIC)
    findings = of("turns", found) or await _undecided(look, seen) or [ok("turns", steps)]
    if seen.gaps is not None and not any(one.cause is Cause.SESSION_TIMEOUT_SHORT for one in found):
        findings.append(ok("session gaps", _gaps(seen.gaps, look.expected.session_timeout_s)))
    return [*findings, *_alarms(look, [one.cause for one in found])]


async def _undecided(look: Look, seen: Seen) -> list[Finding]:
    """Side calls are dropped when their session times out; while all requests wait for that, their marks tell."""
    if seen.funnel.get("linked"):
        return []
    from hintloop_rollout_proxy.linking.events import BodyIds
    from hintloop_rollout_proxy.linking.identity import read_identity

    try:
        waiting = await look.broker.waiting_captures(MOST_PEEKED)
    except DependencyError:
        return []
    side = [one for one in waiting if one.turn_type == "side" or read_identity(one, BodyIds()).side]
    if len(side) < ENOUGH_ALIKE or len(side) <= MOST * len(waiting):
        return []
    said = f"{len(side)} of the newest {len(waiting)} requests are marked as side calls, and none became a turn"
    return [fail("turns", said, Cause.ALL_SIDE_CALLS)]


def of_late(seen: Seen, look: Look) -> Seen:
    """``seen`` with the counts of the last minutes, when these say enough by themselves."""
    recent = look.recent
    if recent is None or recent.funnel.get("captured", 0) < ENOUGH_TURNS:
        return seen
    return replace(seen, funnel=recent.funnel, drops=recent.drops)


def _gaps(gaps: Gaps, timeout_s: float) -> str:
    return (
        f"{gaps.num} continuations, at most {gaps.longest_s:.1f} s after the answer (session timeout {timeout_s:g} s), "
        f"{gaps.num_late} came too late"
    )


def _alarms(look: Look, said: list[Cause]) -> list[Finding]:
    """Alarms that stand and that no figure of this moment showed."""
    alarms = look.snapshot.alarms if look.snapshot else None
    if alarms is None or alarms.looked_ms is None:
        return [skipped("alarms", "nobody looks all the time (the console does)")]
    known = {str(cause) for cause in Cause}
    findings = [
        Finding("alarms", Outcome.WARN, alarm.seen, Cause(alarm.cause))
        for alarm in alarms.active
        if alarm.cause in known and alarm.cause not in said
    ]
    return findings or [ok("alarms", "none" if not alarms.active else "those above")]
