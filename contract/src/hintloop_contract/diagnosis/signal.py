"""What hints and scores show by themselves: a judge that says the same to everything."""

from __future__ import annotations

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.diagnosis.figures import Expected, Recognised, Seen, shares

#: Hints and scores that make a share worth telling.
ENOUGH_HINTS, ENOUGH_SCORES = 20, 50
#: Share of one hint past which it does not come from what followed the answers.
SAME_HINT = 0.8
#: Share of distinct next states above which equal hints have no excuse: people who say the same get the same hint.
DISTINCT = 0.5


def hints_repeat(seen: Seen, expected: Expected) -> Recognised | None:
    """Nearly every turn has the same hint, though what followed the answers differs."""
    if len(seen.hints) < ENOUGH_HINTS:
        return None
    hint, share = shares([hint for hint, _ in seen.hints])
    states = {state for _, state in seen.hints if state}
    distinct = len(states) / len(seen.hints)
    if share < SAME_HINT or distinct < DISTINCT:
        return None
    said = f"{share:.0%} of the last {len(seen.hints)} hints are {str(hint)[:80]!r}; {len(states)} next states differ"
    return Recognised(Cause.HINTS_REPEAT, said, {"hint": str(hint)[:200], "share": share, "distinct_states": distinct})


def one_score(seen: Seen, expected: Expected) -> Recognised | None:
    """Every score is the same."""
    if not expected.needs.score or len(seen.scores) < ENOUGH_SCORES:
        return None
    score, share = shares(list(seen.scores))
    if share < 1.0:
        return None
    said = f"all of the last {len(seen.scores)} scores are {score}"
    return Recognised(Cause.JUDGE_ONE_VALUE, said, {"score": str(score), "scores": len(seen.scores)})
