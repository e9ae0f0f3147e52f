"""What people ask of the trainer from the page: rollback and resume, as requests that outlive this process."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any

from hintloop_contract.broker import Broker
from hintloop_contract.control import ControlRequest
from hintloop_contract.errors import DependencyError

from hintloop_console.errors import RequestError

#: How long an answer waits for the trainer's first word; a request waits on without it.
FIRST_WORD_S, POLL_S = 2.0, 0.1
WAITING = "waiting"
_ID = re.compile(r"\d{1,20}-\d{1,20}")


async def ask(broker: Broker, request: ControlRequest) -> dict[str, Any]:
    """Put a request to the trainer: ``{request_id, state, detail, version}``.

    Raises:
        DependencyError: Redis is away, and the request was not put.
    """
    request_id = await broker.ask_control(request)
    found = _waiting(request_id)
    # It stands from here on, whatever becomes of Redis: who was told that it does not would ask a second time.
    with contextlib.suppress(DependencyError):
        for _ in range(int(FIRST_WORD_S / POLL_S)):
            found = await state(broker, request_id)
            if found["state"] != WAITING:
                break
            await asyncio.sleep(POLL_S)
    return found


async def state(broker: Broker, request_id: str) -> dict[str, Any]:
    """What became of a request; ``waiting`` while the trainer has not seen it.

    Raises:
        RequestError: it is no id.
        DependencyError: Redis is away.
    """
    _check(request_id)
    outcome = await broker.control_outcome(request_id)
    if outcome is None:
        return _waiting(request_id)
    return {"request_id": request_id, "state": outcome.state, "detail": outcome.detail, "version": outcome.version}


async def withdraw(broker: Broker, request_id: str) -> None:
    """Take a request back.

    Raises:
        RequestError: the trainer has begun with it, or it is unknown.
        DependencyError: Redis is away.
    """
    _check(request_id)
    if not await broker.withdraw_control(request_id):
        raise RequestError(409, "the trainer has begun with it, or it is not waiting any more")


def _waiting(request_id: str) -> dict[str, Any]:
    return {"request_id": request_id, "state": WAITING, "detail": "", "version": None}


def _check(request_id: str) -> None:
    if not _ID.fullmatch(request_id):
        raise RequestError(422, f"request_id {request_id[:40]!r} is no id of a request")
