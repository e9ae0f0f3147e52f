"""What became of the turns so far: where they go, and why most of them are lost, if they are."""

from __future__ import annotations

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.messages import DropReason

from hintloop.doctor.finding import Finding, fail, not_yet, ok, skipped, warn
from hintloop.doctor.look import Look
from hintloop.funnel import Snapshot

#: Turns that make a share worth telling.
ENOUGH_TURNS = 20
#: Share of the captured turns lost for one reason that is worth a word.
MOST = 0.5
#: Reasons that say what a turn is, not that something is wrong.
EXPECTED = {DropReason.SIDE, DropReason.RETRY, DropReason.NOT_CONTINUED, DropReason.FEEDBACK, DropReason.TENANT_OPT_OUT}
BY_REASON = {
    DropReason.STALE: Cause.SAMPLES_STALE,
    DropReason.BACKPRESSURE: Cause.SAMPLES_STALE,
    DropReason.NO_HINT: Cause.NO_HINTS,
    DropReason.JUDGE_FAILED: Cause.VOTES_FAIL,
    DropReason.TEACHER_MISALIGNED: Cause.PRM_SHIFTED,
    DropReason.TEACHER_MISSING: Cause.PRM_GIVES_NO_LOGPROBS,
    DropReason.IDS_MISSING: Cause.CAPTURE_UNPROVEN,
    DropReason.LOGPROB_MISSING: Cause.CAPTURE_UNPROVEN,
    DropReason.COUNT_MISMATCH: Cause.CAPTURE_UNPROVEN,
    DropReason.DEAD: Cause.DEAD_LETTERS,
}


async def check(look: Look) -> list[Finding]:
    """Findings of the funnel."""
    if look.snapshot is None:
        return [skipped("turns", "Redis is away")]
    steps = look.snapshot.steps
    captured = steps["captured"]
    seen = ", ".join(f"{count} {step}" for step, count in steps.items())
    if not captured:
        return [not_yet("turns", "no request was captured; point the agent's base URL at the proxy")]
    lost = _most_lost(look.snapshot)
    if captured < ENOUGH_TURNS or lost is None:
        return [ok("turns", seen)]
    reason, count = lost
    seen = f"{seen}; {count} of {captured} dropped as {reason}"
    if reason == DropReason.NO_NEXT_STATE:
        cause = Cause.SESSION_TIMEOUT_SHORT if steps["linked"] else Cause.TURNS_NOT_CONTINUED
        return [fail("turns", seen, cause)]
    return [warn("turns", seen, BY_REASON.get(reason, Cause.TURNS_DROPPED))]


def _most_lost(snapshot: Snapshot) -> tuple[DropReason, int] | None:
    """The reason for which more than :data:`MOST` of the turns are lost."""
    totals: dict[DropReason, int] = {}
    for name, count in snapshot.drops.items():
        reason = DropReason(name.partition(":")[2])
        totals[reason] = totals.get(reason, 0) + count
    wrong = {reason: count for reason, count in totals.items() if reason not in EXPECTED}
    if not wrong:
        return None
    reason = max(wrong, key=lambda name: wrong[name])
    return (reason, wrong[reason]) if wrong[reason] > MOST * snapshot.steps["captured"] else None
