"""`--active`: the trainer publishes its weights as they are and goes back to them; engines must follow both times.

Nothing that was learned changes; versions rise by two, and answers that are on their way span two of them.
"""

from __future__ import annotations

from hintloop_contract.control import Command, ControlRequest
from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.diagnosis.publishing import ENDED

from hintloop.doctor.checks import redis, training
from hintloop.doctor.finding import Finding, fail, ok, skipped
from hintloop.doctor.look import Look
from hintloop.errors import CommandError
from hintloop.rollback import ask_trainer

NAME = "publish and go back"
#: Longest wait for the trainer, seconds: it may be in the middle of a step.
WAIT_S = 240.0


async def check(look: Look) -> list[Finding]:
    """Ask the trainer, then look at the engines again."""
    status = look.seen.trainer if look.seen else {}
    if not status or status.get("phase") in ENDED:
        return [skipped(NAME, "no trainer runs")]
    if status.get("paused"):
        return [skipped(NAME, f"training is paused: {status['paused']}")]
    try:
        outcome = await ask_trainer(look.broker, ControlRequest(command=Command.DRILL), WAIT_S)
    except CommandError as error:
        return [fail(NAME, str(error), Cause.WEIGHTS_NEVER_PUBLISHED)]
    await redis.take(look)
    after = await training.check_published(look)
    return [ok(NAME, outcome.detail), *after]
