"""Server-sent events: the loop every few seconds, and every row that changed. A page that comes back goes on.

Each listener has its own place in the numbered changes of the database: nothing is queued for slow ones, and the id
of the last event is all that is needed to go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from hintloop_contract.diagnosis.alarms import Alarm

from hintloop_console import lists
from hintloop_console.access import COOKIE
from hintloop_console.answers import encoded, refusals
from hintloop_console.deps import ConsoleDeps
from hintloop_console.errors import RequestError
from hintloop_console.loop_view import Look, alarm_row
from hintloop_console.reading import kept_by_trainer

MAX_LISTENERS = 64
#: Longest time without an event, and shortest between two looks at the database.
QUIET_S, PAUSE_S = 5.0, 0.25


def router(deps: ConsoleDeps, stop: asyncio.Event) -> APIRouter:
    """``GET /api/v1/events``, until ``stop``."""
    routes = APIRouter(prefix="/api/v1")

    @routes.get("/events", response_class=StreamingResponse, responses=refusals(401, 503))
    async def events(request: Request) -> Response:
        """Events `loop`, `turn`, `step`, `version` and `alarm`; `Last-Event-ID` goes on where a page left off."""
        cookie = request.cookies.get(COOKIE)
        deps.access.check_read(cookie)
        if deps.view.watchers >= MAX_LISTENERS:
            raise RequestError(503, f"{MAX_LISTENERS} pages listen already; close some", retry_after_s=10)
        last = request.headers.get("last-event-id", "")
        listener = Listener(deps, int(last) if last.isdecimal() and len(last) < 19 else None)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        told = listener.events(stop, lambda: deps.access.may_read(cookie))
        return StreamingResponse(told, headers=headers, media_type="text/event-stream")

    return routes


class Listener:
    """One page that listens."""

    def __init__(self, deps: ConsoleDeps, since: int | None) -> None:
        """Tell of changes after number ``since``; of those from now on when ``None``."""
        self._deps = deps
        self._since = since
        self._shown: Look | None = None
        self._shown_at = 0.0
        self._alarms: dict[str, Alarm] = {}

    async def events(self, stop: asyncio.Event, may_read: Callable[[], bool] = lambda: True) -> AsyncIterator[bytes]:
        """Events as bytes, until ``stop``, or until the page ``may_read`` no more."""
        newest = await asyncio.to_thread(self._deps.teller.change)
        if self._since is None or self._since > newest:
            self._since = newest
        yield b"retry: 2000\n\n"
        with self._deps.view.watching():
            while not stop.is_set() and may_read():
                change = self._deps.reader.next_change
                for event in [*self._look(), *await asyncio.to_thread(self._changes)]:
                    yield event
                await asyncio.sleep(PAUSE_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(change.wait(), 1.0 - PAUSE_S)

    def _look(self) -> list[bytes]:
        look, now = self._deps.view.look, asyncio.get_running_loop().time()
        events: list[bytes] = []
        if look is not self._shown or now - self._shown_at >= QUIET_S:
            self._shown, self._shown_at = look, now
            if look.loop is not None or look.away is not None:
                events.append(_event("loop", look.shown()))
        standing = {alarm.cause: alarm for alarm in look.alarms.active}
        ended = [alarm for alarm in look.alarms.past if self._ended(alarm, standing)]
        fresh = [alarm for cause, alarm in standing.items() if self._alarms.get(cause) != alarm]
        self._alarms = standing
        return events + [_event("alarm", alarm_row(alarm)) for alarm in [*ended, *fresh]]

    def _ended(self, alarm: Alarm, standing: dict[str, Alarm]) -> bool:
        """Whether an alarm that was told ended since."""
        told = self._alarms.get(alarm.cause)
        return told is not None and alarm.cause not in standing and told.since_ms == alarm.since_ms

    def _changes(self) -> list[bytes]:
        assert self._since is not None
        look = self._deps.view.look
        with self._deps.store.reading() as connection:
            found = lists.changed(connection, self._since, look.current, kept_by_trainer(look.loop))
        events = []
        for number, kind, row in found:
            events.append(_event(kind, row, number))
            self._since = number
        return events


def _event(kind: str, row: dict[str, Any], number: int | None = None) -> bytes:
    place = b"" if number is None else f"id: {number}\n".encode()
    return place + f"event: {kind}\ndata: ".encode() + encoded(row) + b"\n\n"
