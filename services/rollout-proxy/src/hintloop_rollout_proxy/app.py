"""The ASGI app: admits, routes by allow-list, answers the proxy's own routes. Capturing is `serving`'s business."""

from __future__ import annotations

from traceback import format_tb

import aiohttp
import msgspec
import structlog
from hintloop_contract.ids import adapter_version

from hintloop_rollout_proxy import feedback, metrics, serving
from hintloop_rollout_proxy.asgi import (
    JSON_HEADERS,
    AnswerWatch,
    App,
    Receive,
    Scope,
    Send,
    Sending,
    read_body,
    send_body,
    send_refusal,
    send_start,
    send_whole,
)
from hintloop_rollout_proxy.deps import ProxyDeps
from hintloop_rollout_proxy.errors import (
    ClientGoneError,
    EngineTimeoutError,
    EngineUnreachableError,
    InternalError,
    PathRefusedError,
    RefusedError,
    said,
)
from hintloop_rollout_proxy.request import check_numbers, read_fields
from hintloop_rollout_proxy.timing import Timing
from hintloop_rollout_proxy.tracing import begin_span, end_span
from hintloop_rollout_proxy.upstream import Engine, answer_headers, request_headers

#: Discovery, tokenizing and the harmless probes of real agents.
PASSED = frozenset(
    (
        "/v1/models",
        "/v1/messages/count_tokens",
        "/tokenize",
        "/v1/tokenize",
        "/detokenize",
        "/health",
        "/version",
        "/get_model_info",
        "/model_info",
        "/api/tags",
        "/props",
    )
)
OWN = frozenset(("/metrics", "/hintloop/health", "/hintloop/ready"))
ALLOWED = (*sorted(serving.PATHS), *sorted(PASSED), "/v1/models/{id}", "HEAD /", feedback.PATH)

log = structlog.get_logger()


def make_app(deps: ProxyDeps) -> App:
    """The app over ``deps``; background tasks are `wiring`'s."""
    return ProxyApp(deps)


class ProxyApp:
    """One instance serves every request."""

    def __init__(self, deps: ProxyDeps) -> None:
        """Serve with ``deps``."""
        self._deps = deps
        self._handler = serving.Handler(deps)
        self._feedback = feedback.FeedbackHandler(deps.intake, deps.clock, deps.metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            raise NotImplementedError(f"ASGI scope {scope['type']!r} is not served")
        path, method = scope["path"], scope["method"]
        # Only paths of ours are labels: what strangers make up would grow without bound.
        known = path if path in ALLOWED or path in OWN else "other"
        span = begin_span(self._deps.tracing, scope, known) if path not in OWN else None
        metrics_ = self._deps.metrics
        client = Sending(send)
        metrics_.num_in_flight += 1
        status = 499
        try:
            status = await self._route(path, method, scope, receive, client)
        except RefusedError as error:
            status = error.status
            metrics_.refused.labels(error.code).inc()
            await send_refusal(client, error, path)
        except ClientGoneError:
            pass
        except Exception as error:  # noqa: BLE001 - the edge: what a client gets is its API's error
            status = InternalError.status
            log.error("request failed", path=path, error=said(error), trace=format_tb(error.__traceback__))
            own = InternalError(f"the proxy failed at this request: {type(error).__name__}")
            if client.started:
                # The server cuts the connection, and logs what it is given.
                raise own from None
            metrics_.refused.labels(InternalError.code).inc()
            await send_refusal(client, own, path)
        finally:
            metrics_.num_in_flight -= 1
            metrics_.requests.inc(known, str(status))
            end_span(span, scope, status)

    async def _route(self, path: str, method: str, scope: Scope, receive: Receive, send: Send) -> int:
        if path.startswith("/hintloop/") or path == "/metrics":
            return await self._own(path, send)
        refuse_unlisted(method, path)
        headers = dict(scope["headers"])
        client = self._deps.gate.admit(headers)
        if method == "HEAD" and path == "/":
            await send_whole(send, 200, JSON_HEADERS, b"")
            return 200
        body = await read_body(receive, headers, self._deps.config.proxy.max_request_bytes)
        scope["timing"] = Timing()
        if path == feedback.PATH:
            return await self._feedback.serve(client, headers, body, send)
        if path in serving.PATHS:
            fields = read_fields(body) if method == "POST" else None
            if fields is not None:
                check_numbers(fields)
                return await self._handler.serve(client, scope, headers, body, fields, receive, send)
            self._deps.metrics.uncaptured.labels(path).inc()
        return await self._pass(scope, body, receive, send)

    async def _own(self, path: str, send: Send) -> int:
        deps = self._deps
        if path == "/metrics":
            await send_whole(send, 200, [(b"content-type", metrics.CONTENT_TYPE)], deps.metrics.render())
            return 200
        if path == "/hintloop/health":
            await send_whole(send, 200, JSON_HEADERS, b'{"status":"ok"}')
            return 200
        if path == "/hintloop/ready":
            ready = deps.watch.ready and deps.background.running
            status = 200 if ready else 503
            document = {
                "ready": ready,
                "engines": deps.watch.describe(),
                "tasks": deps.background.describe(),
                "captures": deps.writer.describe(),
            }
            await send_whole(send, status, JSON_HEADERS, msgspec.json.encode(document))
            return status
        raise PathRefusedError(f"{path} is no route of the proxy; there are /hintloop/health and /hintloop/ready")

    async def _pass(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> int:
        """Pass a request through untouched."""
        limit_s = self._deps.config.proxy.request_timeout_s
        started: list[int] = []
        try:
            with AnswerWatch(receive, limit_s):
                return await self._relay(scope, body, send, started)
        except TimeoutError:
            error: RefusedError = EngineTimeoutError(f"no whole answer within {limit_s:g} s")
        except aiohttp.ClientError as problem:
            error = EngineUnreachableError(f"the engine's answer broke off: {said(problem)}")
        if started:
            return started[0]
        raise error

    async def _relay(self, scope: Scope, body: bytes, send: Send, started: list[int]) -> int:
        deps = self._deps
        # The path that was checked is the path that is sent; one written with escapes is not.
        path = "/v1/models" if scope["path"].startswith("/v1/models/") else scope["path"]
        query = scope["query_string"].decode("latin-1")
        target = f"{path}?{query}" if query else path
        headers = request_headers(scope["headers"], deps.engine_key)
        last: EngineUnreachableError | None = None
        for engine in deps.pool.ordered():
            try:
                async with deps.pool.request(
                    engine, scope["method"], target, headers, self._body(engine, scope["path"], body)
                ) as response:
                    await self._relay_answer(scope["path"], response, send, started)
                    return response.status
            except EngineUnreachableError as error:
                last = error
        raise last or EngineUnreachableError("no policy engine is configured; set policy.engines")

    def _body(self, engine: Engine, path: str, body: bytes) -> bytes | None:
        """The body, with the name under which the engine serves the model that agents know by ours."""
        fields = read_fields(body) if body and engine.model is not None and path in MODEL_NAMED else None
        if fields is None or "model" not in fields:
            return body or None
        fields["model"] = msgspec.Raw(msgspec.json.encode(engine.model))
        return msgspec.json.encode(fields)

    async def _relay_answer(self, path: str, response: aiohttp.ClientResponse, send: Send, started: list[int]) -> None:
        headers = answer_headers(response)
        if path.startswith("/v1/models") and response.status == 200:
            data = rename_models(await response.read(), self._deps.config.policy.served_model_name)
            if path.startswith("/v1/models/"):
                data = model_of(data, path.removeprefix("/v1/models/"))
            started.append(response.status)
            await send_whole(send, response.status, headers, data)
            return
        started.append(response.status)
        await send_start(send, response.status, headers)
        async for block in response.content.iter_any():
            await send_body(send, block, more=True)
        await send_body(send, b"")


#: Paths whose body names a model.
MODEL_NAMED = frozenset(("/v1/messages/count_tokens", "/tokenize", "/v1/tokenize", "/detokenize"))


def refuse_unlisted(method: str, path: str) -> None:
    """Raise ``PathRefusedError`` unless the allow-list has the path."""
    if path in serving.PATHS or path in PASSED or path.startswith("/v1/models/"):
        return
    if (method, path) in (("HEAD", "/"), ("POST", feedback.PATH)):
        return
    raise PathRefusedError(f"{method} {path} is not forwarded; allowed are: {', '.join(ALLOWED)}")


def model_of(listing: bytes, name: str) -> bytes:
    """One model out of a list of models; raises ``PathRefusedError`` when it is not there."""
    models = msgspec.json.decode(listing).get("data", [])
    for model in models:
        if model.get("id") == name:
            return msgspec.json.encode(model)
    known = ", ".join(str(model.get("id")) for model in models)
    raise PathRefusedError(f"there is no model {name!r}; served are: {known}")


def rename_models(data: bytes, public_model: str) -> bytes:
    """Let the (first) model of a list carry the configured name."""
    try:
        document = msgspec.json.decode(data)
        models = document["data"] if isinstance(document.get("data"), list) else [document]
        # Versions of the policy, not models to choose from.
        models[1:] = [model for model in models[1:] if adapter_version(model["id"]) is None]
        models[0]["id"] = public_model
        return msgspec.json.encode(document)
    except (msgspec.DecodeError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return data
