"""What became of the turns: where they go, and why most of them are lost, if they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.diagnosis.figures import MOST_EVIDENCE, Evidence, Expected, Recognised, Seen
from hintloop_contract.messages import DropReason

#: Turns that make a share worth telling, and that are enough when all of them went one way.
ENOUGH_TURNS, ENOUGH_ALIKE = 20, 6
#: Share of the captured turns lost for one reason that is worth a word.
MOST = 0.5
#: The same for turns that nothing followed: the last of every conversation is one.
MOST_ENDS = 0.7
#: Share of the continuations near or past the session timeout that is worth a word.
MANY_LATE = 0.1
#: Share of maxmemory from which the next answers may be refused.
NEARLY_FULL = 0.95
#: Reasons that say what a turn is, not that something is wrong; side calls alone are too many when nothing else comes.
EXPECTED = (DropReason.SIDE, DropReason.RETRY, DropReason.NOT_CONTINUED, DropReason.FEEDBACK, DropReason.TENANT_OPT_OUT)
BY_REASON = {
    DropReason.STALE: Cause.SAMPLES_STALE,
    DropReason.BACKPRESSURE: Cause.SAMPLES_STALE,
    DropReason.NO_HINT: Cause.NO_HINTS,
    DropReason.JUDGE_FAILED: Cause.VOTES_FAIL,
    DropReason.RENDER_MISMATCH: Cause.RENDERING_DIFFERS,
    DropReason.TEACHER_MISALIGNED: Cause.PRM_SHIFTED,
    DropReason.TEACHER_MISSING: Cause.PRM_GIVES_NO_LOGPROBS,
    DropReason.IDS_MISSING: Cause.CAPTURE_UNPROVEN,
    DropReason.LOGPROB_MISSING: Cause.CAPTURE_UNPROVEN,
    DropReason.COUNT_MISMATCH: Cause.CAPTURE_UNPROVEN,
    DropReason.GATE_REJECTED: Cause.GATE_HOLDS,
    DropReason.DEAD: Cause.DEAD_LETTERS,
}
#: Words of a drop's detail that name its cause better than the reason does.
FINER = (
    (DropReason.TOO_LONG, ("context", "PRM"), Cause.TEACHER_CONTEXT_SHORT),
    (DropReason.JUDGE_FAILED, ("cut by the token limit",), Cause.VOTES_CUT),
    (DropReason.NO_SIGNAL, ("timeout",), Cause.TIMEOUTS_AS_NEXT_STATE),
)
#: A next state that says how a wait ended, and no more about the answer.
TIMEOUT = re.compile(
    r"\btime[d -]*out\b|\btime limit\b|\bdeadline exceeded\b|\bno (?:response|answer|output) (?:within|after)\b|"
    r"\b(?:took|taking) too long\b|"
    r"\b(?:stream|connection|socket|client|peer|server)\b.{0,20}\b(?:disconnected|reset|lost)\b|"
    r"\binterrupted by (?:the )?user\b|"
    r"\b(?:request|operation|command|tool call) (?:was )?(?:aborted|interrupted|cancell?ed)\b|"
    r"超时|中断",
    re.IGNORECASE,
)
LONGEST_NOTICE = 300


def redis_full(seen: Seen, expected: Expected) -> Recognised | None:
    """Redis refuses what comes in, or is about to."""
    room = seen.redis
    if room.most and room.used >= NEARLY_FULL * room.most:
        said = f"Redis uses {room.used / 2**20:.0f} of {room.most / 2**20:.0f} MiB (maxmemory)"
        return Recognised(Cause.REDIS_FULL, said, {"used_bytes": room.used, "maxmemory_bytes": room.most}, grave=True)
    refused = seen.drops.get("capture:backpressure", 0)
    if refused:
        said = f"{refused} captures were refused, because as many as proxy.max_captures allows wait to be linked"
        return Recognised(Cause.REDIS_FULL, said, {"refused": refused}, grave=True)
    return None


def timeouts(seen: Seen, expected: Expected) -> Recognised | None:
    """What follows the answers are timeouts."""
    states = [state for state in seen.next_states if state]
    notices = [state for state in states if len(state) <= LONGEST_NOTICE and TIMEOUT.search(state)]
    unjudged = _mostly(seen.details_of(DropReason.NO_SIGNAL), ("timeout",))
    if notices and len(states) >= ENOUGH_ALIKE and len(notices) > MOST * len(states):
        said = (
            f"{len(notices)} of the last {len(states)} next states are timeouts or interruptions: {notices[0][:80]!r}"
        )
        return Recognised(
            Cause.TIMEOUTS_AS_NEXT_STATE, said, {"example": notices[0][:200], "count": len(notices)}, True
        )
    linked = seen.funnel.get("linked", 0)
    lost = seen.drops.get("judge:no_signal", 0)
    if unjudged and linked >= ENOUGH_ALIKE and lost > MOST * linked:
        said = f"{lost} of {linked} turns were followed by nothing that can be judged: {unjudged}"
        return Recognised(Cause.TIMEOUTS_AS_NEXT_STATE, said, {"unjudged": lost, "linked": linked}, grave=True)
    return None


def session_gaps(seen: Seen, expected: Expected) -> Recognised | None:
    """Continuations come after the session timeout, or in its last fifth."""
    gaps, timeout_s = seen.gaps, expected.session_timeout_s
    if gaps is None:
        return None
    every = gaps.num + gaps.num_late
    # One who came back the next morning is no cause.
    if every >= ENOUGH_ALIKE and gaps.num_late > MANY_LATE * every:
        said = (
            f"{gaps.num_late} of {every} continuations came after the session timeout of {timeout_s:g} s, the latest "
            f"{gaps.late_max_s:.1f} s after the answer"
        )
        evidence: Evidence = {"late": gaps.num_late, "of": every, "longest_s": gaps.late_max_s, "timeout_s": timeout_s}
        return Recognised(Cause.SESSION_TIMEOUT_SHORT, said, evidence, grave=gaps.num_late > MOST * every)
    if every >= ENOUGH_TURNS and gaps.num_near > MANY_LATE * every:
        said = (
            f"{gaps.num_near} of {every} continuations came in the last fifth of the session timeout ({timeout_s:g} s)"
        )
        return Recognised(Cause.SESSION_TIMEOUT_SHORT, said, {"near": gaps.num_near, "longest_s": gaps.longest_s})
    return None


def lost_turns(seen: Seen, expected: Expected) -> Recognised | None:
    """Most turns are lost for one reason, or none becomes a sample."""
    captured, linked = seen.funnel.get("captured", 0), seen.funnel.get("linked", 0)
    totals: dict[str, int] = {}
    for name, count in seen.drops.items():
        reason = name.partition(":")[2]
        totals[reason] = totals.get(reason, 0) + count
    wrong = {reason: count for reason, count in totals.items() if reason not in EXPECTED}
    if not linked and (unlinked := _none_linked(seen, totals, captured)):
        return unlinked
    if captured < ENOUGH_TURNS:
        return None
    ends = wrong.get(DropReason.NO_NEXT_STATE, 0)
    if ends <= MOST_ENDS * (ends + linked):
        wrong.pop(DropReason.NO_NEXT_STATE, None)
    reason = max(wrong, key=lambda name: wrong[name], default="")
    if reason and wrong[reason] > MOST * captured:
        return _most_lost(seen, reason, wrong[reason], captured)
    if not seen.funnel.get("scored", 0) and not seen.funnel.get("batched", 0) and sum(wrong.values()) > MOST * captured:
        said = f"{captured} turns were captured, none became a sample"
        return Recognised(Cause.NO_SAMPLES, said, _why(seen, {"captured": captured}), grave=True)
    return None


def _none_linked(seen: Seen, totals: Mapping[str, int], captured: int) -> Recognised | None:
    """No request at all was read as the next one of a conversation."""
    side, ends = totals.get(DropReason.SIDE, 0), totals.get(DropReason.NO_NEXT_STATE, 0)
    if side >= ENOUGH_ALIKE and side > MOST * captured:
        said = f"{side} of {captured} requests were read as side calls, and none as a turn"
        return Recognised(Cause.ALL_SIDE_CALLS, said, _why(seen, {"side": side, "captured": captured}), grave=True)
    # Equal requests in place of a conversation's next are retries to the linker.
    alone = ends + totals.get(DropReason.RETRY, 0)
    if ends >= ENOUGH_ALIKE and alone > MOST * captured:
        said = f"{ends} of {captured} captured turns were dropped as no_next_state, and none was continued"
        return Recognised(
            Cause.TURNS_NOT_CONTINUED, said, _why(seen, {"dropped": ends, "captured": captured}), grave=True
        )
    return None


def _most_lost(seen: Seen, reason: str, count: int, captured: int) -> Recognised:
    said = f"{count} of {captured} captured turns were dropped as {reason}"
    details = seen.details_of(reason)
    cause, quoted = _cause_of(reason, details)
    if quoted:
        said += f" ({quoted[:120]})"
    evidence = _why(seen, {"dropped": count, "captured": captured})
    if reason == DropReason.NO_NEXT_STATE:
        return Recognised(Cause.SESSION_TIMEOUT_SHORT, said, evidence, grave=True)
    return Recognised(cause, said, evidence)


def _cause_of(reason: str, details: Sequence[str]) -> tuple[Cause, str]:
    """A drop reason's cause, finer where most of the details tell more, and a detail that tells it."""
    for finer, words, cause in FINER:
        if reason == finer and (telling := _mostly(details, words)):
            return cause, telling
    known = reason in set(DropReason)
    coarse = BY_REASON.get(DropReason(reason), Cause.TURNS_DROPPED) if known else Cause.TURNS_DROPPED
    return coarse, details[0] if details else ""


def _mostly(details: Sequence[str], words: Sequence[str]) -> str:
    """The first detail with one of ``words`` where most have one, else empty: a few say nothing of the rest."""
    telling = [detail for detail in details if any(word in detail for word in words)]
    return telling[0] if len(telling) > MOST * len(details) else ""


def _why(seen: Seen, evidence: Evidence) -> Evidence:
    """Evidence with the most frequent drop reasons beside it."""
    most = sorted(seen.drops.items(), key=lambda item: -item[1])[:MOST_EVIDENCE]
    return evidence | {f"dropped {name}": count for name, count in most}


def unhinted(seen: Seen, expected: Expected) -> Recognised | None:
    """Turns without a hint are trained, and they are most of them."""
    if expected.drop_without_hint or not expected.needs.hint or expected.needs.either:
        return None
    judged, hinted = seen.funnel.get("judged", 0), seen.funnel.get("hinted", 0)
    if judged < ENOUGH_TURNS or hinted > (1 - MOST) * judged:
        return None
    said = f"{judged - hinted} of {judged} judged turns have no hint, and opd.drop_sample_without_hint is false"
    return Recognised(Cause.UNHINTED_TURNS_TRAINED, said, {"judged": judged, "hinted": hinted}, grave=True)


def stale(seen: Seen, expected: Expected) -> Recognised | None:
    """A good part of the linked turns is too old, or not let in because they would be."""
    linked = seen.funnel.get("linked", 0)
    lost = seen.dropped(DropReason.STALE) + seen.drops.get("link:backpressure", 0)
    every = linked + seen.drops.get("link:backpressure", 0)
    if every < ENOUGH_TURNS or lost <= MOST / 2 * every:
        return None
    said = (
        f"{lost} of {every} turns were too old to be trained, or not let in because they would have been "
        f"(training.max_staleness_steps is {expected.max_staleness_steps})"
    )
    return Recognised(Cause.SAMPLES_STALE, said, _why(seen, {"lost": lost, "of": every}))
