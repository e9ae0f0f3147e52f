"""gRPC `ForcedScoring`: the very scorer of the stream and of HTTP, with packed tensors.

Cancelled calls and passed deadlines end the request to the engine, too: grpc cancels the handler, the handler's HTTP
request ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from hintloop_contract.api_keys import KeyRing, presented_key
from hintloop_contract.errors import ConfigError, HintloopError
from hintloop_contract.scoring.channel import SERVER_OPTIONS, SERVICE_NAME
from hintloop_contract.scoring.v1 import scoring_pb2_grpc
from hintloop_contract.scoring.v1.scoring_pb2 import ScorePart, ScoreReply, ScoreRequest, ScoreStreamRequest

from hintloop_teacher import grpc_requests
from hintloop_teacher.errors import UnsupportedError
from hintloop_teacher.grpc_status import code_of
from hintloop_teacher.scoring import ForcedScorer

if TYPE_CHECKING:
    from hintloop_teacher.app import TeacherDeps

Context = grpc.aio.ServicerContext[Any, Any]

HEALTH_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
#: How long calls may go on after the server was told to end.
GRACE_S = 5.0
READINESS_INTERVAL_S = 0.5


class ForcedScoringService(scoring_pb2_grpc.ForcedScoringServicer):
    """Answers `Score` and `ScoreStream`."""

    def __init__(self, deps: TeacherDeps) -> None:
        self._deps = deps
        self._limit = deps.config.prm.grpc_max_requests
        self._num_requests = 0

    async def Score(self, request: ScoreRequest, context: Context) -> ScoreReply:  # noqa: N802  # named by the proto
        """Score one response."""
        with self._admitted() as admitted:
            if not admitted:
                await self._full(context)
            try:
                scorer = await self._deps.engine.prepared()
                asked = grpc_requests.read(request, scorer.vocabulary_size)
                scores = await _scores(scorer, asked)
                return grpc_requests.reply(asked, scores, scorer.facts)
            except HintloopError as error:
                await context.abort(code_of(error), str(error))
        raise AssertionError("unreachable: abort raises")

    async def ScoreStream(  # noqa: N802
        self, request: ScoreStreamRequest, context: Context
    ) -> AsyncIterator[ScorePart]:
        """Score many responses, part by part, each as soon as it is there."""
        with self._admitted() as admitted:
            if not admitted:
                await self._full(context)
            waiting = list(enumerate(request.sequences))[::-1]
            running: set[asyncio.Task[list[ScorePart]]] = set()
            try:
                while waiting or running:
                    while waiting and len(running) < self._deps.config.prm.max_concurrency:
                        running.add(asyncio.create_task(self._sequence(*waiting.pop(), request.part_tokens)))
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        for part in task.result():
                            yield part
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    async def _sequence(self, index: int, request: ScoreRequest, part_tokens: int) -> list[ScorePart]:
        try:
            scorer = await self._deps.engine.prepared()
            asked = grpc_requests.read(request, scorer.vocabulary_size)
            scores = await _scores(scorer, asked)
        except HintloopError as error:
            return [ScorePart(sequence=index, last=True, status=code_of(error).name, message=str(error))]
        return list(grpc_requests.parts(index, asked, scores, scorer.facts, part_tokens))

    @contextlib.contextmanager
    def _admitted(self) -> Iterator[bool]:
        """Count one more request; false when there are too many."""
        if self._num_requests >= self._limit:
            yield False
            return
        self._num_requests += 1
        try:
            yield True
        finally:
            self._num_requests -= 1

    async def _full(self, context: Context) -> None:
        message = f"{self._limit} requests wait or are being scored (prm.grpc_max_requests); ask again later"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)


async def _scores(scorer: ForcedScorer, asked: grpc_requests.Asked) -> Any:
    if asked.model and asked.model != scorer.facts.model:
        raise UnsupportedError(f"model: {asked.model!r:.80} is asked, {scorer.facts.model!r} teaches here")
    if asked.candidates is None:
        return await scorer.score(asked.prompt_ids, asked.response_ids, asked.top_k)
    return await scorer.score(asked.prompt_ids, asked.response_ids, candidate_ids=asked.candidates)


class KeyCheck(grpc.aio.ServerInterceptor):
    """Refuses calls without a known key in the metadata, as HTTP has it in headers; health checks need none."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        """Let the call through, or answer ``UNAUTHENTICATED``."""
        metadata = details.invocation_metadata or ()
        key = presented_key({name.encode(): value.encode() for name, value in metadata if isinstance(value, str)})
        if details.method.startswith(f"/{HEALTH_NAME}/") or self._keys.identify(key) is not None:
            return await continuation(details)
        return grpc.unary_unary_rpc_method_handler(_unauthenticated)


async def _unauthenticated(_request: Any, context: Context) -> None:
    message = "the API key is missing or unknown; send one of prm.api_keys as metadata 'authorization: Bearer KEY'"
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)


@contextlib.asynccontextmanager
async def listening(deps: TeacherDeps) -> AsyncIterator[int]:
    """Serve gRPC beside the HTTP routes; gives the port.

    Raises:
        ConfigError: the port is taken, or the host is none of this machine's.
    """
    prm = deps.config.prm
    server = grpc.aio.server(
        interceptors=[KeyCheck(KeyRing(prm.api_keys))],
        options=SERVER_OPTIONS,
    )
    scoring_pb2_grpc.add_ForcedScoringServicer_to_server(  # type: ignore[no-untyped-call]
        ForcedScoringService(deps), server
    )
    checking = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checking, server)
    reflection.enable_server_reflection((SERVICE_NAME, HEALTH_NAME, reflection.SERVICE_NAME), server)
    port = _bind(server, prm.host, prm.grpc_listen_port)
    await server.start()
    structlog.get_logger().info("gRPC listening", host=prm.host, port=port)
    readiness = asyncio.create_task(_follow_readiness(checking, deps))
    try:
        yield port
    finally:
        readiness.cancel()
        await checking.enter_graceful_shutdown()
        await server.stop(GRACE_S)


def _bind(server: grpc.aio.Server, host: str, port: int) -> int:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise ConfigError(f"prm.grpc_port: cannot listen on {address}; set another port ({error})") from None


async def _follow_readiness(checking: Any, deps: TeacherDeps) -> None:
    """The service is serving once the engine was found fit, or at once where no PRM engine is needed."""
    states = health_pb2.HealthCheckResponse
    await checking.set("", states.SERVING)
    while True:
        fit = deps.engine.report is not None and deps.engine.problem is None
        ready = fit or not deps.needs.prm_engine
        await checking.set(SERVICE_NAME, states.SERVING if ready else states.NOT_SERVING)
        await asyncio.sleep(READINESS_INTERVAL_S)
