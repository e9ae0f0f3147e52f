"""What the teacher's routes do with a request before its body is read: its size, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from hintloop_contract.problems import INVALID, invalid, problem
from starlette.exceptions import HTTPException as HTTPError

#: Some million ids; callers that have more use gRPC.
MAX_BODY_BYTES = 32 * 1024 * 1024


class _Bounded(Request):
    """A request whose body is refused, not held, past the limit."""

    async def body(self) -> bytes:
        """The whole body; raises ``HTTPException`` 413."""
        if not hasattr(self, "_body"):
            data = bytearray()
            async for chunk in self.stream():
                data += chunk
                if len(data) > MAX_BODY_BYTES:
                    message = f"the body has more than {MAX_BODY_BYTES} bytes; ask in parts, or over gRPC"
                    raise HTTPException(413, problem("too_large", message))
            self._body = bytes(data)
        return self._body


class ScoringRoute(APIRoute):
    """Answers a body that does not fit with the field's path, its value and what it should be."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with the errors in our form."""
        handler = super().get_route_handler()

        async def named(request: Request) -> Response:
            try:
                return await handler(_Bounded(request.scope, request.receive))
            except RequestValidationError as error:
                raise HTTPException(422, invalid(error.errors())) from error
            except (HTTPError, RecursionError) as error:
                # FastAPI answers 400, and says no more, when JSON nests too deep or holds a number of 5,000 digits.
                if isinstance(error, HTTPError) and error.status_code != 400:
                    raise
                message = "the body nests too deep, or holds a number too long to be read; leave that out"
                raise HTTPException(422, problem(INVALID, message)) from error

        return named
