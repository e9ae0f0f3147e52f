"""How routes answer: JSON that is not kept, one form of error, the headers that every answer has."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from hintloop_contract.errors import DependencyError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hintloop_console.access import check_host
from hintloop_console.bodies import ProblemReply
from hintloop_console.errors import RequestError
from hintloop_console.texts import sendable, sendable_throughout

#: Own scripts and styles alone; nothing may frame the page, and forms lead nowhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
#: Longest body of a request; a password is the longest thing that is asked.
MAX_BODY_BYTES = 65_536
_ENCODER = msgspec.json.Encoder()


def json_answer(body: Any, status: int = 200) -> Response:
    """``body`` as JSON that nobody keeps."""
    headers = {"Cache-Control": "no-store"}
    return Response(encoded(body), status, headers, media_type="application/json")


def encoded(body: Any) -> bytes:
    """``body`` as JSON, in characters that can be sent."""
    try:
        return _ENCODER.encode(body)
    except UnicodeEncodeError:
        return _ENCODER.encode(sendable_throughout(body))


def problem_answer(status: int, message: str, retry_after_s: int | None = None) -> Response:
    """What is wrong, as ``{"error": {"message"}}``."""
    answer = json_answer({"error": {"message": sendable(message)}}, status)
    if retry_after_s is not None:
        answer.headers["Retry-After"] = str(retry_after_s)
    return answer


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Answers besides 200, for the OpenAPI document."""
    return {status: {"model": ProblemReply} for status in statuses}


def add_error_answers(app: FastAPI) -> None:
    """Give every error the one form."""

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        return problem_answer(error.status, str(error), error.retry_after_s)

    @app.exception_handler(DependencyError)
    async def away(request: Request, error: DependencyError) -> Response:
        return problem_answer(503, str(error), retry_after_s=5)

    @app.exception_handler(sqlite3.DatabaseError)
    async def unreadable(request: Request, error: sqlite3.DatabaseError) -> Response:
        structlog.get_logger().error("a request could not be answered", path=request.url.path, detail=str(error))
        return problem_answer(503, f"the console's database cannot be read now: {error}", retry_after_s=5)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
        return problem_answer(422, f"{place or 'the body'}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        return problem_answer(error.status_code, str(error.detail))


class SecurityHeaders:
    """Adds :data:`HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap ``app``."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""

        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, send_with if scope["type"] == "http" else send)


class KnownHosts:
    """Answers under the console's own names alone."""

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        """Wrap ``app``; ``names`` are `console.allowed_hosts`."""
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        app = self._app
        if scope["type"] == "http":
            try:
                check_host(Headers(scope=scope).get("host", ""), self._names)
            except RequestError as error:
                app = problem_answer(error.status, str(error))
        await app(scope, receive, send)


class SmallBodies:
    """Refuses what is longer than anything that is asked here, before it is read whole: anyone may send it."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap ``app``."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        num_read = 0

        async def receive_some() -> Message:
            nonlocal num_read
            message = await receive()
            num_read += len(message.get("body", b""))
            if num_read > MAX_BODY_BYTES:
                raise HTTPException(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
            return message

        await self._app(scope, receive_some if scope["type"] == "http" else receive, send)
