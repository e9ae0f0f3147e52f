"""Traces (OpenTelemetry), off unless ``tracing.otlp_endpoint`` is set. Owns set-up and the W3C ``traceparent``.

Nothing of OpenTelemetry is imported while it is off. A service continues a turn's trace by the ``traceparent`` of the
stream entry (:attr:`Entry.traceparent`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

    from hintloop_contract.config.operations import TracingSection

Attribute = str | bool | int | float


class Tracing:
    """Begins and ends spans."""

    def __init__(self, provider: TracerProvider) -> None:
        """Trace by ``provider``."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("hintloop")
        self._propagator = TraceContextTextMapPropagator()

    def begin(
        self,
        name: str,
        *,
        traceparent: str = "",
        serves: bool = False,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> Span:
        """A span below ``traceparent``; one that is empty or not readable begins a trace. ``serves``: of a request."""
        from opentelemetry.trace import SpanKind

        parent = self._propagator.extract({"traceparent": traceparent}) if traceparent else None
        kind = SpanKind.SERVER if serves else SpanKind.CONSUMER
        return self._tracer.start_span(name, context=parent, kind=kind, attributes=attributes)

    def traceparent(self, span: Span) -> str:
        """What continues the trace below ``span``."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return carrier.get("traceparent", "")

    def close(self) -> None:
        """Send what waits; blocks, some seconds at most."""
        self._provider.shutdown()


def open_tracing(service: str, section: TracingSection, exporter: SpanExporter | None = None) -> Tracing | None:
    """Tracing for ``service``, or ``None`` when it is off. Spans are sent from a thread of their own.

    Args:
        service: ``service.name`` of the spans.
        section: where to.
        exporter: takes each span at its end in place of the endpoint (tests).
    """
    if not section.otlp_endpoint and exporter is None:
        return None
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    provider = TracerProvider(
        sampler=ParentBasedTraceIdRatio(section.sample_ratio),
        resource=Resource.create({"service.name": service}),
        shutdown_on_exit=False,
    )
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(f"{section.otlp_endpoint}/v1/traces", timeout=5))
        )
    return Tracing(provider)
