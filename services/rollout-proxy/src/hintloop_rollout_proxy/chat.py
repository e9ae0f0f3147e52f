"""Serves one chat completion: read, ask for more, forward, relay, capture. Owns the order of these steps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

import aiohttp
import msgspec
import structlog
from hintloop_contract.ids import new_id
from hintloop_contract.messages import Capture

from hintloop_rollout_proxy.asgi import DisconnectWatch, Receive, Send, send_body, send_refusal, send_start, send_whole
from hintloop_rollout_proxy.capturing import Exchange, capture_of
from hintloop_rollout_proxy.deps import ProxyDeps
from hintloop_rollout_proxy.engines.dialect import Answer, Fields, Reader, Wishes
from hintloop_rollout_proxy.errors import EngineTimeoutError, EngineUnreachableError, RefusedError
from hintloop_rollout_proxy.events import EventRelay
from hintloop_rollout_proxy.gate import Client
from hintloop_rollout_proxy.request import (
    fill_defaults,
    is_constrained,
    leaves_sampling_out,
    read_sampling,
    session_key,
    untrainable,
)
from hintloop_rollout_proxy.upstream import Engine, answer_headers, request_headers
from hintloop_rollout_proxy.writer import Parcel

PATH = "/v1/chat/completions"
#: Statuses by which an engine may reject what only we asked for.
REJECTED = (400, 422)
EVERYTHING = Wishes(
    logprobs=True,
    token_ids=True,
    prompt_token_ids=True,
    meta_info=True,
    usage=True,
    sglext_input=True,
    sglext_output=True,
)

log = structlog.get_logger()


@dataclass(slots=True)
class Reply:
    """What the client got so far."""

    send: Send
    started: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """One way of asking the engine: the body, headers to add, and what the client wished for."""

    fields: Fields
    extra_headers: dict[str, str]
    wishes: Wishes


class ChatHandler:
    """Serves ``POST /v1/chat/completions``."""

    def __init__(self, deps: ProxyDeps) -> None:
        """Serve with ``deps``."""
        self._deps = deps

    async def serve(
        self,
        client: Client,
        raw_headers: list[tuple[bytes, bytes]],
        headers: Mapping[bytes, bytes],
        body: bytes,
        fields: Fields,
        receive: Receive,
        send: Send,
    ) -> int:
        """Answer one request and capture it; the HTTP status that the client saw."""
        deps = self._deps
        exchange = self._begin(client, headers, body, fields)
        deps.flight.begin(exchange.turn_id, exchange.start_ms)
        reply = Reply(send)
        try:
            with DisconnectWatch(receive) as watch:
                try:
                    await self._within_limit(exchange, raw_headers, headers, fields, reply)
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if not watch.gone or task is None:
                        exchange.abort("the proxy shut down")
                        raise
                    task.uncancel()
                    exchange.leave()
        finally:
            await self._capture(exchange)
        return exchange.http_status

    def _begin(self, client: Client, headers: Mapping[bytes, bytes], body: bytes, fields: Fields) -> Exchange:
        deps = self._deps
        rollout = deps.config.rollout
        if rollout.apply_sampling_defaults:
            fill_defaults(fields, rollout.temperature, rollout.top_p, rollout.max_new_tokens)
        turn_type = headers.get(b"x-turn-type", b"").decode("latin-1").strip().lower()
        return Exchange(
            turn_id=new_id(),
            request=body,
            start_ms=deps.clock.now_ms(),
            version_oldest=deps.versions.oldest,
            engine=deps.dialect.name,
            tenant=client.tenant,
            credential=client.credential,
            opted_out=not client.train,
            session_key=session_key(fields, headers),
            leaves_sampling_out=leaves_sampling_out(fields),
            shaped=is_constrained(fields),
            turn_type=turn_type or None,
            session_done=headers.get(b"x-session-done", b"").strip().lower() in (b"1", b"true"),
            traceparent=headers.get(b"traceparent", b"").decode("latin-1"),
            sampling=read_sampling(fields),
            untrainable=untrainable(fields),
        )

    async def _within_limit(
        self,
        exchange: Exchange,
        raw_headers: list[tuple[bytes, bytes]],
        headers: Mapping[bytes, bytes],
        fields: Fields,
        reply: Reply,
    ) -> None:
        limit_s = self._deps.config.proxy.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._answer(exchange, raw_headers, headers, fields, reply)
        except TimeoutError:
            exchange.abort(f"no whole answer within {limit_s:g} s")
            await self._refuse(exchange, reply, EngineTimeoutError(f"no whole answer within {limit_s:g} s"))
        except EngineUnreachableError as error:
            exchange.refuse(error.status, str(error))
            await self._refuse(exchange, reply, error)
        except aiohttp.ClientError as error:
            exchange.abort(f"the engine's answer broke off: {error!r}")
            await self._refuse(exchange, reply, EngineUnreachableError(exchange.detail))

    async def _refuse(self, exchange: Exchange, reply: Reply, error: RefusedError) -> None:
        """Tell the client, unless an answer began: then leaving it unfinished is what tells."""
        if not reply.started:
            self._deps.metrics.refused.labels(error.code).inc()
            exchange.http_status = error.status
            await send_refusal(reply.send, error)

    async def _answer(
        self,
        exchange: Exchange,
        raw_headers: list[tuple[bytes, bytes]],
        headers: Mapping[bytes, bytes],
        fields: Fields,
        reply: Reply,
    ) -> None:
        """Try the engines in turn until one can be reached."""
        last: EngineUnreachableError | None = None
        for engine in self._deps.pool.ordered():
            await self._deps.watch.name(engine)
            exchange.choose(engine.url, engine.behaviour_space, engine.defaults_neutral)
            try:
                await self._ask(engine, exchange, raw_headers, self._asks(engine, exchange, fields, headers), reply)
                return
            except EngineUnreachableError as error:
                log.warning("engine unreachable", url=engine.url, error=str(error))
                last = error
        raise last or EngineUnreachableError("no policy engine is configured; set policy.engines")

    def _asks(self, engine: Engine, exchange: Exchange, fields: Fields, headers: Mapping[bytes, bytes]) -> list[Ask]:
        """First with our additions, then as the client wrote it: no request fails because of what we add."""
        plain = dict(fields)
        if engine.model is not None:
            plain["model"] = msgspec.Raw(msgspec.json.encode(engine.model))
        wishes = self._deps.dialect.wishes(fields, headers)
        untouched = Ask(plain, {}, replace(EVERYTHING, stream=wishes.stream))
        if exchange.untrainable is not None:
            return [untouched]
        more = dict(plain)
        extra_headers = self._deps.dialect.rewrite(more, wishes)
        return [Ask(more, extra_headers, wishes), untouched]

    async def _ask(
        self, engine: Engine, exchange: Exchange, raw_headers: list[tuple[bytes, bytes]], asks: list[Ask], reply: Reply
    ) -> None:
        deps = self._deps
        for number, ask in enumerate(asks):
            headers = [*request_headers(raw_headers, deps.engine_key), *ask.extra_headers.items()]
            body = msgspec.json.encode(ask.fields)
            async with deps.pool.request(engine, "POST", PATH, headers, body) as response:
                if response.status in REJECTED and number + 1 < len(asks):
                    await response.read()
                    continue
                reader = deps.dialect.reader(ask.wishes, deps.config.policy.served_model_name)
                exchange.answer = reader.answer
                exchange.http_status = response.status
                await self._relay(exchange, response, reader, reply)
                return

    async def _relay(self, exchange: Exchange, response: aiohttp.ClientResponse, reader: Reader, reply: Reply) -> None:
        if response.status >= 400:
            data = await response.read()
            exchange.refuse(response.status, data[:200].decode(errors="replace"))
            reply.started = True
            await send_whole(reply.send, response.status, answer_headers(response), data)
        elif response.content_type == "text/event-stream":
            await self._relay_stream(exchange, response, reader, reply)
        else:
            seen = read_whole(reader, await response.read())
            if seen is None:
                raise aiohttp.ClientPayloadError("it is no JSON, and holds what only the proxy asked for")
            exchange.conclude()
            self._first_byte(exchange)
            reply.started = True
            await send_whole(reply.send, response.status, answer_headers(response), seen)

    async def _relay_stream(
        self, exchange: Exchange, response: aiohttp.ClientResponse, reader: Reader, reply: Reply
    ) -> None:
        relay = EventRelay(reader)
        reply.started = True
        await send_start(reply.send, response.status, answer_headers(response))
        first = True
        async for block in response.content.iter_any():
            out = relay.feed(block)
            if out:
                await send_body(reply.send, out, more=True)
                if first:
                    first = False
                    self._first_byte(exchange)
        exchange.conclude()
        await send_body(reply.send, relay.rest())

    def _first_byte(self, exchange: Exchange) -> None:
        self._deps.metrics.first_byte.observe((self._deps.clock.now_ms() - exchange.start_ms) / 1000)

    async def _capture(self, exchange: Exchange) -> None:
        deps = self._deps
        try:
            capture = self._make_capture(exchange)
        except Exception as error:  # noqa: BLE001 - one capture, whatever is wrong with it
            deps.metrics.lost.labels("unreadable").inc()
            log.error("capture lost", turn_id=exchange.turn_id, error=repr(error))
            deps.flight.end(exchange.turn_id)
            return
        deps.metrics.captured.labels(capture.status).inc()
        if capture.problem is not None:
            deps.metrics.problems.labels(capture.problem).inc()
        await deps.intake.put(Parcel(capture, exchange.traceparent))

    def _make_capture(self, exchange: Exchange) -> Capture:
        """The capture; of an answer that cannot be packed only the request, which may be another's next state."""
        end_ms = self._deps.clock.now_ms()
        try:
            return capture_of(exchange, end_ms)
        except Exception as error:  # noqa: BLE001 - one answer, whatever is wrong with it
            log.error("answer cannot be captured", turn_id=exchange.turn_id, error=repr(error))
            exchange.answer = Answer()
            exchange.abort(f"the answer cannot be captured: {error!r:.200}")
            return capture_of(exchange, end_ms)


def read_whole(reader: Reader, data: bytes) -> bytes | None:
    """Let ``reader`` see a whole body; one that it cannot read is no sample, and passes but for what we asked."""
    try:
        return reader.body(data)
    except Exception as error:  # noqa: BLE001 - the client gets its answer, whatever we cannot read of it
        log.warning("unreadable answer", error=repr(error))
        reader.answer.finished = False
        reader.answer.error = f"unreadable answer: {error!s:.200}"
        return reader.hide(data)
