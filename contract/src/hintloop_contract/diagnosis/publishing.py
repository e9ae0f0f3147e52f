"""What the trainer and the engines say of themselves: stuck, held back, or serving other weights than released."""

from __future__ import annotations

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.diagnosis.figures import Expected, Recognised, Seen

#: What the trainer's phase ends with when something that it needs keeps failing.
FAILING = " failed"
#: Phases whose failure keeps weights from the engines.
PUBLISHING = ("publishing failed", "exporting weights failed", "describing a version failed", "taking a version failed")
#: Phases of a trainer that ended.
ENDED = ("stopped", "failed")
#: Steps that the released weights may be behind: one is being published while the next is made.
MOST_BEHIND = 1


def trainer(seen: Seen, expected: Expected) -> Recognised | None:
    """It ended, waits for what keeps failing, or stands still."""
    status = seen.trainer
    phase, detail = status.get("phase", ""), status.get("detail", "")
    said = f"trainer: {phase}{f': {detail}' if detail else ''}; step {status.get('step', '?')}"
    if not status:
        return None
    if phase in ENDED:
        return Recognised(Cause.TRAINER_AWAY, said, {"phase": phase}, grave=True)
    if phase.endswith(FAILING):
        cause = Cause.WEIGHTS_NEVER_PUBLISHED if phase in PUBLISHING else Cause.TRAINER_STUCK
        return Recognised(cause, said, {"phase": phase, "detail": detail[:200]}, grave=True)
    if phase == "paused":
        return Recognised(Cause.TRAINING_PAUSED, said, {"reason": status.get("paused", "")})
    return None


def gate(seen: Seen, expected: Expected) -> Recognised | None:
    """The newest weights were held back."""
    holds = seen.figure("gate_holds") or 0
    if not holds:
        return None
    why = seen.trainer.get("alarm", "")
    said = f"{holds:.0f} release(s) in a row were held back{f': {why}' if why else ''}"
    return Recognised(Cause.GATE_HOLDS, said, {"holds": holds, "why": why[:200]})


def unpublished(seen: Seen, expected: Expected) -> Recognised | None:
    """Steps are made, and the released weights are those of an earlier one."""
    if seen.step and seen.weights.current is None:
        said = f"{seen.step} steps were made, and no version was released"
        return Recognised(Cause.WEIGHTS_NEVER_PUBLISHED, said, {"step": seen.step}, grave=True)
    released = seen.hashes[-1][0] if seen.hashes else None
    holds = seen.figure("gate_holds") or 0
    if released is None or holds or seen.step - released <= MOST_BEHIND:
        return None
    said = f"step {seen.step} was made, and the released weights are those of step {released}"
    return Recognised(Cause.WEIGHTS_NEVER_PUBLISHED, said, {"step": seen.step, "released_step": released}, grave=True)


def engines(seen: Seen, expected: Expected) -> Recognised | None:
    """An engine says that it serves another version than the released one."""
    current = seen.weights.current
    if current is None or seen.weights.updating is not None:
        return None
    ours = {url: version for url, version in seen.engines.items() if url.rstrip("/") in expected.engine_urls}
    behind = {url: version for url, version in ours.items() if version != str(current)}
    if not behind:
        return None
    where = ", ".join(f"{url} serves {version or 'none'}" for url, version in behind.items())
    return Recognised(Cause.ENGINE_BEHIND, f"version {current} is released; {where}", {**behind}, grave=True)


def dead(seen: Seen, expected: Expected) -> Recognised | None:
    """Messages were set aside."""
    counts = seen.streams.get("dead")
    if counts is None or not counts.length:
        return None
    said = f"{counts.length} message(s) were set aside after repeated failures"
    return Recognised(Cause.DEAD_LETTERS, said, {"messages": counts.length})
