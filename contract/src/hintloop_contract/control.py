"""What an operator asks of a running trainer: the wire types of `hintloop rollback` and `hintloop resume`.

A request is durable: a trainer that dies while it carries one out finds it again. Owns shapes; the commands on
Redis stand in `redis_control`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Command(StrEnum):
    """What can be asked."""

    ROLLBACK = "rollback"  # go back to an earlier version and pause
    RESUME = "resume"  # train again
    DRILL = "drill"  # publish the weights as they are, and go back to the version before, which are the same


class ControlState(StrEnum):
    """How far a request is."""

    ACCEPTED = "accepted"  # the trainer has begun
    DONE = "done"
    REFUSED = "refused"  # nothing was changed; the detail says why


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. ``version`` is that of a rollback.

    Example: ``ControlRequest(command="rollback", version=7)``.
    """

    command: str
    version: int | None = None


class ControlOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request; ``version`` is the one released by it.

    Example: ``ControlOutcome(state="done", detail="weights of version 7 (step 12)", version=11)``.
    """

    state: str
    detail: str = ""
    version: int | None = None


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Training stands still until it is resumed, over restarts too.

    Example: ``Pause(reason="rolled back to version 7", since_ms=1764450000000)``.
    """

    reason: str
    since_ms: int
