"""Routes that show. Those that ask the database are plain functions: the framework runs them in threads."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from hintloop_console import bodies, lists, turn_view
from hintloop_console.access import COOKIE
from hintloop_console.answers import json_answer, refusals
from hintloop_console.deps import ConsoleDeps
from hintloop_console.errors import RequestError
from hintloop_console.loop_view import alarm_row

MAX_PAGE, MAX_STEPS_PAGE, MAX_TOP = 1000, 20_000, 256
MAX_MINUTES = 7 * 24 * 60
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
Words = Annotated[str, Query(max_length=500)]
Word = Annotated[str, Query(max_length=200)]
Step = Annotated[int | None, Query(ge=0, le=2**53)]


def router(deps: ConsoleDeps) -> APIRouter:
    """Everything that is looked at."""

    def may_read(request: Request) -> None:
        deps.access.check_read(request.cookies.get(COOKIE))

    routes = APIRouter(prefix="/api/v1", dependencies=[Depends(may_read)], responses=refusals(401, 422))
    _add_loop(routes, deps)
    _add_turns(routes, deps)
    _add_learning(routes, deps)
    return routes


def _add_loop(routes: APIRouter, deps: ConsoleDeps) -> None:
    @routes.get("/loop", response_model=bodies.Loop, responses=refusals(503))
    async def loop() -> Response:
        """Funnel, streams, weights and services as they are now."""
        look = deps.view.look if deps.view.watchers else await deps.view.take()
        if look.loop is None:
            raise RequestError(503, f"redis is not available: {look.away}", retry_after_s=2)
        return json_answer(look.shown())

    @routes.get("/alarms", response_model=bodies.Alarms)
    async def alarms() -> Response:
        """Alarms with their explanations."""
        state = await deps.broker.alarms()
        active, past = (list(map(alarm_row, some)) for some in (state.active, state.past))
        return json_answer({"looked_ms": state.looked_ms, "active": active, "past": past})

    @routes.get("/drops", response_model=bodies.Drops)
    def drops(minutes: Annotated[int, Query(ge=1, le=MAX_MINUTES)] = 60) -> Response:
        """Why turns were dropped, over time, with examples."""
        with deps.store.reading() as connection:
            return json_answer(lists.drops(connection, _now_ms(deps), minutes))

    @routes.get("/doctor", response_model=bodies.Doctor)
    def doctor() -> Response:
        """Doctor's last report."""
        return json_answer(deps.doctor.state())


def _add_turns(routes: APIRouter, deps: ConsoleDeps) -> None:
    @routes.get("/sessions", response_model=bodies.Sessions)
    def sessions(q: Words = "", after: Word = "", limit: Limit = 100) -> Response:
        """Sessions, those with the newest turn first; `q` are words of any of their turns."""
        with deps.store.reading() as connection:
            return json_answer(lists.sessions(connection, q, after, limit))

    @routes.get("/turns", response_model=bodies.Turns)
    def turns(
        q: Words = "", session_id: Word = "", stage: Word = "", reason: Word = "", after: Word = "", limit: Limit = 100
    ) -> Response:
        """Turns, newest first; `q` are words, or the beginning of an id."""
        chosen = lists.TurnFilter(q, session_id, stage, reason)
        with deps.store.reading() as connection:
            return json_answer(lists.turns(connection, chosen, after, limit))

    @routes.get("/turns/{turn_id}", response_model=bodies.Turn, responses=refusals(404))
    def turn(turn_id: str, top: Annotated[int, Query(ge=0, le=MAX_TOP)] = 20) -> Response:
        """One turn with its tokens and, of each, `top` candidates of the teacher at most."""
        with deps.store.reading() as connection:
            return json_answer(turn_view.turn(connection, turn_id, deps.tokens, top))

    @routes.get("/export", response_class=StreamingResponse)
    def export(q: Words = "", session_id: Word = "", stage: Word = "", reason: Word = "") -> Response:
        """Kept turns as recorded turns, one JSON object a line, oldest first."""
        chosen = lists.TurnFilter(q, session_id, stage, reason)
        chosen.clause()
        headers = {"Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="turns.jsonl"'}
        lines = turn_view.exported(deps.store, chosen)
        return StreamingResponse(lines, headers=headers, media_type="application/jsonl")


def _add_learning(routes: APIRouter, deps: ConsoleDeps) -> None:
    @routes.get("/steps", response_model=bodies.Steps)
    def steps(after: Word = "", limit: Annotated[int, Query(ge=1, le=MAX_STEPS_PAGE)] = MAX_STEPS_PAGE) -> Response:
        """Steps with their figures, oldest first."""
        with deps.store.reading() as connection:
            return json_answer(lists.steps(connection, after, limit))

    @routes.get("/advantages", response_model=bodies.Advantages)
    def advantages(first_step: Step = None, last_step: Step = None) -> Response:
        """How advantages of tokens lie, over kept turns that were trained in these steps."""
        with deps.store.reading() as connection:
            return json_answer(lists.advantages(connection, first_step, last_step))

    @routes.get("/versions", response_model=bodies.Versions)
    def versions() -> Response:
        """Versions with what the gate said of them, newest first."""
        look = deps.view.look
        with deps.store.reading() as connection:
            return json_answer(lists.versions(connection, look.current, kept_by_trainer(look.loop)))


def kept_by_trainer(loop: dict[str, Any] | None) -> set[int]:
    """Versions that the trainer said it can go back to."""
    try:
        return {int(name) for name in json.loads((loop or {}).get("trainer", {}).get("rollback_to") or "{}")}
    except (ValueError, TypeError):
        return set()


def _now_ms(deps: ConsoleDeps) -> int:
    """Redis time as it was last seen: entries carry it, and the two clocks may differ."""
    loop = deps.view.look.loop
    return int(loop["time_ms"]) if loop else deps.teller.last_ms()
