"""Routes that change something: signing in, rollback, resume, running doctor."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from hintloop_contract.control import Command, ControlRequest

from hintloop_console import bodies, control
from hintloop_console.access import COOKIE, check_origin
from hintloop_console.answers import json_answer, refusals
from hintloop_console.deps import ConsoleDeps


def router(deps: ConsoleDeps) -> APIRouter:
    """Who asks, and everything that writes."""
    routes = APIRouter(prefix="/api/v1", responses=refusals(401, 403))
    _add_session(routes, deps)
    _add_requests(routes, deps)
    return routes


async def _from_here(request: Request) -> None:
    check_origin(dict(request.headers))


def _add_session(routes: APIRouter, deps: ConsoleDeps) -> None:
    access = deps.access

    def me_of(signed_in: bool) -> dict[str, Any]:
        return {
            "signed_in": signed_in,
            "can_write": signed_in,
            "password_set": access.has_password,
            "read_requires_password": not access.reading_is_free,
            "policy": deps.loaded.config.policy.name,
            "version": version("hintloop-console"),
        }

    @routes.get("/me", response_model=bodies.Me)
    async def me(request: Request) -> Response:
        """Whether this browser is signed in, and may write."""
        return json_answer(me_of(access.signed_in(request.cookies.get(COOKIE))))

    @routes.post("/session", response_model=bodies.Me, dependencies=[Depends(_from_here)], responses=refusals(429))
    async def sign_in(body: bodies.SignIn, request: Request) -> Response:
        """Sign in: a cookie for this site alone."""
        address = request.client.host if request.client else ""
        cookie = access.sign_in(address, body.password)
        answer = json_answer(me_of(True))
        secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
        answer.set_cookie(COOKIE, cookie, max_age=access.lasts_s, httponly=True, samesite="strict", secure=secure)
        return answer

    @routes.delete("/session", response_model=bodies.Me, dependencies=[Depends(_from_here)])
    async def sign_out() -> Response:
        """Sign out."""
        answer = json_answer(me_of(False))
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer


def _add_requests(routes: APIRouter, deps: ConsoleDeps) -> None:
    async def may_write(request: Request) -> None:
        check_origin(dict(request.headers))
        deps.access.check_write(request.cookies.get(COOKIE))

    signed_in: dict[str, Any] = {"dependencies": [Depends(may_write)]}
    asked: dict[str, Any] = {**signed_in, "response_model": bodies.Request, "responses": refusals(503)}

    @routes.post("/rollback", status_code=202, **asked)
    async def rollback(body: bodies.GoBack) -> Response:
        """Ask the trainer to serve an earlier version again; it pauses training."""
        request = ControlRequest(command=Command.ROLLBACK, version=body.version)
        return json_answer(await control.ask(deps.broker, request), 202)

    @routes.post("/resume", status_code=202, **asked)
    async def resume() -> Response:
        """Ask the trainer to train again."""
        return json_answer(await control.ask(deps.broker, ControlRequest(command=Command.RESUME)), 202)

    @routes.get("/control/{request_id}", **asked)
    async def look(request_id: str) -> Response:
        """What became of a request."""
        return json_answer(await control.state(deps.broker, request_id))

    @routes.delete("/control/{request_id}", **asked)
    async def withdraw(request_id: str) -> Response:
        """Take a request back that the trainer has not begun with."""
        await control.withdraw(deps.broker, request_id)
        return json_answer({"request_id": request_id, "state": "withdrawn", "detail": "", "version": None})

    @routes.post("/doctor", status_code=202, response_model=bodies.Doctor, responses=refusals(404, 409), **signed_in)
    async def doctor() -> Response:
        """Run doctor; its report is at `GET /doctor` when it is done."""
        deps.doctor.start()
        return json_answer(await asyncio.to_thread(deps.doctor.state), 202)
