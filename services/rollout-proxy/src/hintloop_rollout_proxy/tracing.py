"""One span for every request that is forwarded, joined with the client's trace before and the engine's behind it.

Owns how a request's ``traceparent`` is read and handed on; what a span says: times, status and ids, never text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hintloop_contract.tracing import Tracing

from hintloop_rollout_proxy.asgi import Scope
from hintloop_rollout_proxy.timing import Timing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

TRACEPARENT = b"traceparent"


def begin_span(tracing: Tracing | None, scope: Scope, name: str) -> Span | None:
    """A span for the request, below the client's, if any. From here on the request carries it as its parent: so do the
    engine and the capture. ``None`` when tracing is off, or the span is not kept."""
    if tracing is None:
        return None
    headers = scope["headers"]
    given = next((value for header, value in headers if header == TRACEPARENT), b"")
    attributes = {"http.request.method": scope["method"], "http.route": name}
    span = tracing.begin(
        f"{scope['method']} {name}", traceparent=given.decode("latin-1"), serves=True, attributes=attributes
    )
    own = (TRACEPARENT, tracing.traceparent(span).encode())
    scope["headers"] = [*((header, value) for header, value in headers if header != TRACEPARENT), own]
    return span


def end_span(span: Span | None, scope: Scope, status: int) -> None:
    """The request is over."""
    if span is None:
        return
    timing: Timing | None = scope.get("timing")
    span.set_attribute("http.response.status_code", status)
    if "turn_id" in scope:
        span.set_attribute("hintloop.turn_id", scope["turn_id"])
    if timing is not None and timing.answered:
        span.set_attribute("hintloop.first_byte_s", timing.answered - timing.arrived)
        span.set_attribute("hintloop.added_s", timing.added_s)
    if status >= 500:
        from opentelemetry.trace import StatusCode

        span.set_status(StatusCode.ERROR)
    span.end()
