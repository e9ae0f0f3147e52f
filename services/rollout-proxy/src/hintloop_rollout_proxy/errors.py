"""Errors of the proxy, named by boundary. Each becomes a JSON answer in the API's error shape, or stops the start."""

from __future__ import annotations

from pathlib import Path

import msgspec
from hintloop_contract.errors import HintloopError

#: Error types of Anthropic's API by HTTP status; any other is ``api_error``.
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    504: "timeout_error",
}


class RolloutProxyError(HintloopError):
    """Base of the proxy's errors."""


class RefusedError(RolloutProxyError):
    """A request that the proxy answers itself. ``status`` is the HTTP status, ``kind`` and ``code`` OpenAI's."""

    status = 400
    kind = "invalid_request_error"
    code = "bad_request"
    param: str | None = None

    def body(self, path: str = "") -> bytes:
        """The answer: OpenAI's ``{"error": {message, type, param, code}}``, on Anthropic's paths theirs."""
        if path.startswith("/v1/messages"):
            error = {"type": ANTHROPIC_TYPES.get(self.status, "api_error"), "message": str(self)}
            return msgspec.json.encode({"type": "error", "error": error})
        members = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": members})


class BadRequestError(RefusedError):
    """The body cannot be read; the message says what about it."""


class InternalError(RefusedError):
    """The proxy failed at a request; its log says how."""

    status = 500
    kind = "server_error"
    code = "internal_error"


class UnauthorizedError(RefusedError):
    """The client's key is missing or unknown."""

    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"


class PathRefusedError(RefusedError):
    """The path is not on the allow-list."""

    status = 404
    kind = "not_found_error"
    code = "path_not_allowed"


class RequestTooLargeError(RefusedError):
    """The body exceeds ``proxy.max_request_bytes``."""

    status = 413
    code = "request_too_large"


class UnknownResponseError(RefusedError):
    """``previous_response_id`` names an answer of ours that is not remembered."""

    code = "previous_response_not_found"
    param = "previous_response_id"


class UnknownItemError(RefusedError):
    """An ``item_reference`` names an item of ours that is not remembered."""

    status = 404
    code = "item_not_found"
    param = "input"


class MemoryAwayError(RefusedError):
    """Earlier answers cannot be looked up, and the request refers to one."""

    status = 503
    kind = "server_error"
    code = "memory_away"


class EngineUnreachableError(RefusedError):
    """No policy engine could be reached, or it closed the connection before answering."""

    status = 502
    kind = "upstream_error"
    code = "engine_unreachable"


class EngineTimeoutError(RefusedError):
    """The engine did not finish within ``proxy.request_timeout_s``."""

    status = 504
    kind = "upstream_error"
    code = "engine_timeout"


class ClientGoneError(RolloutProxyError):
    """The client closed the connection before it had its answer."""


class BackgroundError(RolloutProxyError):
    """A task that must run as long as the server ended; the message names it."""


class ProbeError(RolloutProxyError):
    """The engine's conventions could not be determined; the message says what was seen."""


class SpoolError(RolloutProxyError):
    """The disk spool cannot be used; the message names the directory and the fix."""


def said(error: BaseException) -> str:
    """An error as logs and clients may see it: its class and, where they hold nothing foreign, its words.

    What libraries say of data that they cannot read quotes it, and what an HTTP client says of a request names its
    headers, keys among them; of such an error only the place is told.
    """
    name = type(error).__name__
    if isinstance(error, HintloopError | OSError):
        return f"{name}: {error!s:.300}"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return name if trace is None else f"{name} at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
