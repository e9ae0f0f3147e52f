"""Traces: joined with the client's and the engine's, on the capture's entry, and nothing of them when off."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from hintloop_contract.config.operations import TracingSection
from hintloop_contract.streams import CAPTURES
from hintloop_contract.tracing import Tracing, open_tracing
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

ASK = {"messages": [{"role": "user", "content": "PROMPT"}]}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What a proxy with tracing on has ended."""
    exporter = InMemorySpanExporter()

    def opened(service: str, section: TracingSection) -> Tracing | None:
        return open_tracing(service, section, exporter)

    monkeypatch.setattr("hintloop_rollout_proxy.wiring.open_tracing", opened)
    yield exporter


async def entry_of(running: Any) -> Any:
    async with asyncio.timeout(60):
        while not (found := await running.broker.read(CAPTURES, "test", 1, None)):
            await asyncio.sleep(0.01)
    return found[0]


async def test_a_request_is_joined_with_its_client_and_its_engine(
    spans: InMemorySpanExporter, fake_engine: Any, proxy: Any
) -> None:
    fake_engine.replay("chat_stop")
    async with proxy() as running:
        await running.ask(ASK, traceparent=GIVEN, tracestate="a=b")
        entry = await entry_of(running)
        await running.session.get(running.url + "/hintloop/health")
        await running.session.get(running.url + "/v1/models")
    ended = {span.name: span for span in spans.get_finished_spans()}
    assert set(ended) == {"POST /v1/chat/completions", "GET /v1/models"}
    span = ended["POST /v1/chat/completions"]
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.parent is not None and f"{span.parent.span_id:016x}" == PARENT
    own = f"00-{TRACE}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"
    headers, _ = fake_engine.seen[0]
    assert (headers["traceparent"], headers["tracestate"]) == (own, "a=b")
    assert entry.traceparent == own
    assert span.attributes is not None
    assert span.attributes["hintloop.turn_id"] == entry.turn_id
    assert span.attributes["http.response.status_code"] == 200
    assert 0 < float(str(span.attributes["hintloop.added_s"])) < float(str(span.attributes["hintloop.first_byte_s"]))
    assert "PROMPT" not in span.to_json()
    assert span.resource.attributes["service.name"] == "rollout-proxy"


@pytest.mark.parametrize("given", ["", "garbage", "00-0-0-01"])
async def test_without_a_readable_parent_a_trace_begins_here(
    given: str, spans: InMemorySpanExporter, fake_engine: Any, proxy: Any
) -> None:
    fake_engine.replay("chat_bad_temperature")
    async with proxy() as running:
        await running.ask(ASK, **({"traceparent": given} if given else {}))
        entry = await entry_of(running)
    (span,) = spans.get_finished_spans()
    assert span.parent is None
    ids = f"{span.context.trace_id:032x}-{span.context.span_id:016x}"
    assert entry.traceparent == f"00-{ids}-{span.context.trace_flags:02x}"
    assert span.context.trace_flags.sampled
    assert fake_engine.seen[0][0]["traceparent"] == entry.traceparent


async def test_a_client_that_does_not_sample_is_heard(
    spans: InMemorySpanExporter, fake_engine: Any, proxy: Any
) -> None:
    fake_engine.replay("chat_stop")
    async with proxy() as running:
        await running.ask(ASK, traceparent=f"00-{TRACE}-{PARENT}-00")
        entry = await entry_of(running)
    assert spans.get_finished_spans() == ()
    assert entry.traceparent.startswith(f"00-{TRACE}-") and entry.traceparent.endswith("-00")


async def test_a_share_of_traces_may_be_kept(spans: InMemorySpanExporter, fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    async with proxy(tracing={"sample_ratio": 0.0}) as running:
        await running.ask(ASK)
        await running.ask(ASK, traceparent=GIVEN)
    (span,) = spans.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == TRACE


async def test_off_leaves_a_clients_header_alone(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    async with proxy() as running:
        assert running.deps.tracing is None
        await running.ask(ASK, traceparent=GIVEN)
        entry = await entry_of(running)
        await running.ask(ASK)
    assert entry.traceparent == fake_engine.seen[0][0]["traceparent"] == GIVEN
    assert "traceparent" not in fake_engine.seen[1][0]


async def test_spans_reach_a_collector(fake_engine: Any, proxy: Any) -> None:
    taken: list[ExportTraceServiceRequest] = []

    async def take(request: web.Request) -> web.Response:
        assert request.path == "/v1/traces"
        taken.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response()

    app = web.Application()
    app.router.add_post("/{rest:.*}", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake_engine.replay("chat_stop")
    async with proxy(tracing={"otlp_endpoint": f"http://127.0.0.1:{runner.addresses[0][1]}/"}) as running:
        await running.ask(ASK, traceparent=GIVEN)
    await runner.cleanup()
    names = [span.name for batch in taken for one in batch.resource_spans for s in one.scope_spans for span in s.spans]
    assert names == ["POST /v1/chat/completions"]


def test_a_trace_goes_on_in_another_service() -> None:
    exporter = InMemorySpanExporter()
    tracing = open_tracing("judge", TracingSection(), exporter)
    assert tracing is not None
    span = tracing.begin("judge", traceparent=GIVEN, attributes={"turn_id": "t"})
    assert tracing.traceparent(span) == f"00-{TRACE}-{span.get_span_context().span_id:016x}-01"
    span.end()
    tracing.close()
    assert exporter.get_finished_spans()[0].parent is not None


def test_what_is_off_is_not_even_imported() -> None:
    program = (
        "import sys, hintloop_rollout_proxy.wiring as w\n"
        "from hintloop_contract.config import Config\n"
        "from hintloop_contract.tracing import open_tracing\n"
        "from hintloop_rollout_proxy.scrubbing import make_scrubber\n"
        "c = Config()\n"
        "assert open_tracing('x', c.tracing) is None and make_scrubber(c.proxy) is None\n"
        "heavy = ('opentelemetry.exporter', 'opentelemetry.sdk.trace', 'requests')\n"
        "heavy += ('detect_secrets', 'phonenumbers', 'stdnum')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
