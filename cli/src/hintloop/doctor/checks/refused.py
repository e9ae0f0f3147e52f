"""A configuration that is refused, by the cause that its message shows. The messages are the contract's own."""

from __future__ import annotations

import re

from hintloop_contract.diagnosis.causes import Cause

#: The first that is found in a line of the message names its cause.
PATTERNS = (
    (re.compile(r"opd\.teacher_scoring_mode\b.*generate"), Cause.GENERATED_SCORING),
    (re.compile(r"training\.kl_coef\b.*is refused"), Cause.KL_IN_OPD),
    (re.compile(r"training\.learning_rate = ['\"]?-?0*\.?0*(?:e[-+]?\d+)?['\"]?:"), Cause.LEARNING_RATE_ZERO),
    (re.compile(r"training\.max_staleness_steps\b"), Cause.SAMPLES_STALE),
    (re.compile(r"custom loss .* was not found|custom_loss_path is|no path is set"), Cause.CUSTOM_LOSS_MISSING),
)


def cause_of(message: str) -> Cause:
    """The cause of a refusal; ``configuration_invalid`` where it is none of its own."""
    for line in message.splitlines():
        for pattern, cause in PATTERNS:
            if pattern.search(line):
                return cause
    return Cause.CONFIGURATION_INVALID
