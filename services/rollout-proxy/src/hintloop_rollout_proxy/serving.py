"""Serves one generating request: read, ask for more, forward, relay, capture. Owns the order of these steps."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping

import aiohttp
import msgspec
import structlog
from hintloop_contract.ids import adapter_name, new_id

from hintloop_rollout_proxy.apis.translation import TranslatedApi, Translation, UntranslatableError
from hintloop_rollout_proxy.asgi import (
    AnswerWatch,
    Pushing,
    RawHeaders,
    Receive,
    Scope,
    Send,
    beneath,
    send_body,
    send_refusal,
    send_start,
    send_whole,
)
from hintloop_rollout_proxy.asking import REJECTED, Ask, Question, ways_of
from hintloop_rollout_proxy.capturing import Exchange, captures_or_request
from hintloop_rollout_proxy.deps import ProxyDeps
from hintloop_rollout_proxy.engines.dialect import CHAT, COMPLETIONS, GENERATE, Fields, Reader
from hintloop_rollout_proxy.engines.hiding import rename_in_error
from hintloop_rollout_proxy.errors import (
    ClientGoneError,
    EngineTimeoutError,
    EngineUnreachableError,
    RefusedError,
    said,
)
from hintloop_rollout_proxy.events import EventRelay, TranslatingRelay
from hintloop_rollout_proxy.gate import Client
from hintloop_rollout_proxy.job import Job
from hintloop_rollout_proxy.kept_headers import identity_headers
from hintloop_rollout_proxy.parcels import Parcel
from hintloop_rollout_proxy.receipts import WAIT_S
from hintloop_rollout_proxy.request import Reading, fill_defaults, read_request, session_key
from hintloop_rollout_proxy.upstream import Engine, EngineAnswer, answer_headers, request_headers

CHAT_PATH = "/v1/chat/completions"
#: Engine APIs whose answers can carry exact ids.
ENGINE_APIS = {CHAT_PATH: CHAT, "/v1/completions": COMPLETIONS, "/generate": GENERATE}
#: APIs that are translated where `ProxyDeps.translated` has them, by the name in ``Capture.api``.
OTHER_APIS = {"/v1/responses": "responses", "/v1/messages": "messages"}
PATHS = frozenset((*ENGINE_APIS, *OTHER_APIS))
#: Seconds between two tries to reach an engine.
RETRY_S = 0.25
#: How long a client has to take the words that its answer broke off, where its API has any.
FAREWELL_S = 5.0

log = structlog.get_logger()


class Handler:
    """Serves ``POST`` to any of ``PATHS``."""

    def __init__(self, deps: ProxyDeps) -> None:
        """Serve with ``deps``."""
        self._deps = deps
        self._public_model = deps.config.policy.served_model_name
        self._adapters = deps.config.lora.as_adapter
        self._limit_s = deps.config.proxy.request_timeout_s
        self._wait_s = deps.config.proxy.engine_wait_s

    async def serve(
        self,
        client: Client,
        scope: Scope,
        headers: Mapping[bytes, bytes],
        body: bytes,
        fields: Fields,
        receive: Receive,
        send: Send,
    ) -> int:
        """Answer one request and capture it; the HTTP status that the client saw. Raises ``RefusedError``."""
        deps = self._deps
        job = await self._begin(client, scope, headers, body, fields, send)
        exchange = job.exchange
        deps.flight.begin(exchange.turn_id, exchange.start_ms)
        try:
            await self._watched(job, receive)
        finally:
            for parcel in self._parcels(job) if job.parcels is None else job.parcels:
                await deps.intake.put(parcel)
        await self._finish(job, client)
        return exchange.http_status

    async def _begin(
        self,
        client: Client,
        scope: Scope,
        headers: Mapping[bytes, bytes],
        body: bytes,
        fields: Fields,
        send: Send,
    ) -> Job:
        deps, path = self._deps, scope["path"]
        start_ms = deps.clock.now_ms()
        key = session_key(fields, headers)
        engine_api = ENGINE_APIS.get(path)
        translation, untrainable = None, None
        if engine_api is None:
            translation, untrainable = await self._translate(path, fields, client)
        asked = fields if translation is None else translation.fields
        api = CHAT if translation is not None else engine_api
        reading = self._read(api, asked, untrainable)
        turn_type = headers.get(b"x-turn-type", b"").decode("latin-1").strip().lower()
        exchange = Exchange(
            turn_id=new_id(),
            request=body,
            start_ms=start_ms,
            version_oldest=deps.versions.oldest,
            engine=deps.dialect.name,
            reading=reading,
            api=engine_api or OTHER_APIS[path],
            chat_request=None if translation is None else msgspec.json.encode(asked),
            tenant=client.tenant,
            credential=client.credential,
            opted_out=not client.train,
            session_key=key,
            identity=identity_headers(headers),
            turn_type=turn_type or None,
            session_done=headers.get(b"x-session-done", b"").strip().lower() in (b"1", b"true"),
            traceparent=headers.get(b"traceparent", b"").decode("latin-1"),
            response_id=None if translation is None else translation.response_id,
            untrainable=reading.untrainable,
        )
        scope["turn_id"] = exchange.turn_id
        changed = translation is not None or deps.config.rollout.apply_sampling_defaults
        question = Question(api, asked, headers, reading.untrainable is None, None if changed else body)
        query = scope["query_string"].decode("latin-1")
        target = CHAT_PATH if translation is not None else f"{path}?{query}" if query else path
        return Job(exchange, path, target, question, scope["headers"], send, scope["timing"], translation)

    async def _translate(self, path: str, fields: Fields, client: Client) -> tuple[Translation | None, str | None]:
        """The translation of a request, or why there is none: then the engine's own endpoint serves it."""
        api: TranslatedApi | None = self._deps.translated.get(path)
        try:
            if api is None:
                raise UntranslatableError(f"{path} is not translated")
            return await api.translate(fields, client.tenant), None
        except UntranslatableError as error:
            self._deps.metrics.untranslated.labels(path).inc()
            log.info("request not translated", path=path)
            return None, f"not translated: {error!s:.300}"

    def _read(self, api: str | None, fields: Fields, untrainable: str | None) -> Reading:
        if api is None:
            return Reading(sampling=read_request(CHAT, {}).sampling, leaves_sampling_out=True, untrainable=untrainable)
        rollout = self._deps.config.rollout
        if rollout.apply_sampling_defaults:
            fill_defaults(api, fields, rollout.temperature, rollout.top_p, rollout.max_new_tokens)
        return read_request(api, fields)

    async def _watched(self, job: Job, receive: Receive) -> None:
        try:
            with AnswerWatch(receive, self._limit_s) as job.watch:
                await self._answer(job)
                if job.whole is not None:
                    await self._give_whole(job, *job.whole)
        except ClientGoneError:
            job.exchange.leave()
        except asyncio.CancelledError:
            job.abort("the proxy shut down")
            raise
        except TimeoutError:
            await self._break_off(job, EngineTimeoutError(f"no whole answer within {self._limit_s:g} s"))
        except EngineUnreachableError as error:
            job.exchange.refuse(error.status, str(error))
            await self._refuse(job, error)
        except aiohttp.ClientError as error:
            await self._break_off(job, EngineUnreachableError(f"the engine's answer broke off: {said(error)}"))

    async def _break_off(self, job: Job, error: RefusedError) -> None:
        job.abort(str(error))
        await self._refuse(job, error)

    async def _refuse(self, job: Job, error: RefusedError) -> None:
        """Tell the client. Where an answer began, leaving it unfinished is what tells, unless its API has words."""
        if not job.started:
            self._deps.metrics.refused.labels(error.code).inc()
            job.exchange.http_status = error.status
            await send_refusal(job.send, error, job.public_path)
        elif isinstance(job.relay, TranslatingRelay):
            # A client that does not read is not waited for: its request took its time already.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await send_body(job.send, job.relay.broken(job.exchange.detail))

    async def _answer(self, job: Job) -> None:
        """Try the engines in turn until one can be reached; an engine that restarts is waited for a while."""
        deps, exchange = self._deps, job.exchange
        give_up = time.monotonic() + self._wait_s
        while True:
            last: EngineUnreachableError | None = None
            for engine in deps.pool.ordered():
                adapter = await self._choose(engine, exchange)
                try:
                    await self._ask(engine, job, adapter)
                    return
                except EngineUnreachableError as error:
                    log.warning("engine unreachable", url=engine.url, error=str(error))
                    last = error
            if last is None or time.monotonic() + RETRY_S > give_up:
                raise last or EngineUnreachableError("no policy engine is configured; set policy.engines")
            await asyncio.sleep(RETRY_S)

    async def _choose(self, engine: Engine, exchange: Exchange) -> str | None:
        """An engine will answer; the name of the adapter under which, where versions are adapters.

        One that lost its adapters (it restarted) answers without: nobody is refused, and nothing of it is trained.
        """
        version = exchange.version_oldest if self._adapters else 0
        wanted = adapter_name(version) if version else None
        if engine.model is None or (wanted is not None and wanted not in engine.adapters):
            await self._deps.watch.name(engine, wanted)
        exchange.choose(engine.url, engine.behaviour_space, engine.defaults_neutral)
        has_it = wanted in engine.adapters
        exchange.adapter_version = version if has_it else None
        lacks = None if wanted is None or has_it else f"the engine has no adapter of version {version}"
        exchange.untrainable = exchange.reading.untrainable or lacks
        return wanted if has_it else None

    async def _ask(self, engine: Engine, job: Job, adapter: str | None) -> None:
        """Ask in one way after the other until the engine takes one; else the client gets what its own words met."""
        deps = self._deps
        passed = request_headers(job.raw_headers, deps.engine_key)
        model = engine.model
        if model is not None and adapter is not None:
            model = deps.dialect.adapted(model, adapter)
        met: tuple[int, RawHeaders, bytes] | None = None
        for ask in ways_of(job.question, deps.dialect, engine, self._public_model, adapter):
            headers = [*passed, *ask.headers] if ask.headers else passed
            job.timing.ask()
            async with deps.pool.ask(engine, job.path, headers, ask.body) as response:
                if response.status not in REJECTED:
                    self._take(job, engine, ask, response.status)
                    await self._relay(job, response, ask.reader, model)
                    return
                data = await response.read()
                if ask.written:
                    met = response.status, answer_headers(response), data
        assert met is not None
        await self._give_error(job, model, *met)

    def _take(self, job: Job, engine: Engine, ask: Ask, status: int) -> None:
        """The engine answers this way of asking."""
        exchange = job.exchange
        exchange.answer = ask.reader.answer
        exchange.http_status = status
        if ask.mended is not None:
            engine.wants_mended = True
            exchange.chat_request = msgspec.json.encode(ask.mended)

    async def _give_error(self, job: Job, model: str | None, status: int, headers: RawHeaders, data: bytes) -> None:
        """An engine's error, status and body as they are, but for the name that the engine has for the model."""
        data = rename_in_error(data, model, self._public_model)
        job.exchange.refuse(status, data[:200].decode(errors="replace"))
        job.started = True
        if job.translation is not None:
            data = job.translation.error(status, data)
        await send_whole(job.send, status, headers, data)

    async def _relay(self, job: Job, response: EngineAnswer, reader: Reader, model: str | None) -> None:
        """Relay a stream or an error. An answer in one piece is given once the engine's connection is free again."""
        if response.status >= 400:
            await self._give_error(job, model, response.status, answer_headers(response), await response.read())
        elif response.header(b"content-type").startswith(b"text/event-stream"):
            await self._relay_stream(job, response, reader)
        else:
            data = await response.read()
            job.timing.receive()
            seen = read_whole(reader, data)
            if seen is None:
                raise aiohttp.ClientPayloadError("it is no JSON, and holds what only the proxy asked for")
            if job.translation is not None:
                seen = job.translation.body(seen)
            job.whole = response.status, answer_headers(response), seen

    async def _give_whole(self, job: Job, status: int, headers: RawHeaders, body: bytes) -> None:
        await self._conclude(job)
        job.started = True
        self._first_byte(job)
        await send_whole(job.send, status, headers, body)

    async def _relay_stream(self, job: Job, response: EngineAnswer, reader: Reader) -> None:
        relay = EventRelay(reader) if job.translation is None else TranslatingRelay(reader, job.translation)
        job.relay, job.started = relay, True
        send, first = job.send, True
        await send_start(send, response.status, answer_headers(response))
        if isinstance(relay, TranslatingRelay):
            begin = relay.begin()
            if begin:
                await send_body(send, begin, more=True)
        push, last = Pushing(beneath(send)), b""

        def take(block: bytes) -> bool:
            nonlocal first, last
            if first:
                job.timing.receive()
            out = relay.feed(block)
            if reader.answer.finished and not job.concluded:
                # Its end waits.
                last = out
                return False
            taken = not out or push(out)
            if out and first:
                first = False
                self._first_byte(job)
            return taken

        while not await response.pour(take):
            await push.finish()
            if reader.answer.finished and not job.concluded:
                await self._conclude(job)
                await send_body(send, last, more=True)
                if first and last:
                    self._first_byte(job)
        reader.ended()
        rest = relay.rest()
        await self._conclude(job)
        await send_body(send, rest)

    async def _conclude(self, job: Job) -> None:
        """The engine's answer ended. What an agent is about to see end is stored first, so that a crash does not lose
        what it goes on from; while that takes too long, the agent does not wait."""
        if job.concluded:
            return
        job.concluded = True
        job.exchange.conclude()
        if job.exchange.status == "complete":
            assert job.watch is not None
            # The answer is there: to store and to send it is no longer the engine's time.
            job.watch.allow(WAIT_S + FAREWELL_S)
            job.parcels = self._parcels(job)
            await self._deps.intake.store(job.parcels)

    def _first_byte(self, job: Job) -> None:
        job.timing.answer(self._deps.metrics, self._deps.versions)

    def _parcels(self, job: Job) -> list[Parcel]:
        """The captures of a request that was served."""
        deps, exchange = self._deps, job.exchange
        try:
            captures = captures_or_request(exchange, deps.clock.now_ms())
        except Exception as error:  # noqa: BLE001 - one request, whatever is wrong with it
            deps.metrics.lost.labels("unreadable").inc()
            log.error("capture lost", turn_id=exchange.turn_id, error=said(error))
            deps.flight.end(exchange.turn_id)
            return []
        for capture in captures:
            deps.metrics.captured.inc(capture.status)
            if capture.problem is not None:
                deps.metrics.problems.labels(capture.problem).inc()
        return [Parcel(capture, exchange.traceparent) for capture in captures]

    async def _finish(self, job: Job, client: Client) -> None:
        """Let a translated API remember a whole answer."""
        api = self._deps.translated.get(job.public_path)
        if job.translation is not None and job.exchange.status == "complete" and api is not None and api.finish:
            await api.finish(job.translation, client.tenant)


def read_whole(reader: Reader, data: bytes) -> bytes | None:
    """Let ``reader`` see a whole body; one that it cannot read is no sample, and passes but for what we asked."""
    try:
        return reader.body(data)
    except Exception as error:  # noqa: BLE001 - the client gets its answer, whatever we cannot read of it
        log.warning("unreadable answer", error=said(error))
        reader.answer.finished = False
        reader.answer.error = f"unreadable answer: {error!s:.200}"
        return reader.hide(data)
