"""gRPC `ForcedScoring` over a real channel; the engine behind it is in the process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hintloop_contract.config.needs import signal_needs
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError, DependencyError
from hintloop_contract.scoring.channel import CLIENT_OPTIONS, SERVICE_NAME
from hintloop_contract.scoring.packing import to_array, to_tensor
from hintloop_contract.scoring.v1.scoring_pb2 import ScorePart, ScoreReply, ScoreRequest, ScoreStreamRequest, Tensor
from hintloop_contract.scoring.v1.scoring_pb2_grpc import ForcedScoringStub
from hintloop_teacher import grpc_server
from hintloop_teacher.app import TeacherDeps
from hintloop_teacher.dialects.base import EngineFacts
from hintloop_teacher.errors import (
    MisalignedError,
    MissingError,
    ProbeError,
    RefusedError,
    TooLongError,
    UnsupportedError,
    WrongIdsError,
)
from hintloop_teacher.forced import ForcedScores, tail_logprobs

from .fake_dialect import score_of

VOCAB, CONTEXT = 4, 5000


class Scorer:
    """Stands for ``ForcedScorer``: scores by :func:`score_of`, fails with ``error``, or waits for ``gate``."""

    vocabulary_size = VOCAB
    facts = EngineFacts("fake", "1", "teacher", CONTEXT)

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.num_running = 0
        self.most_running = 0
        self.num_cancelled = 0

    async def score(
        self,
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
        top_k: int = 0,
        candidate_ids: Sequence[Sequence[int]] | None = None,
    ) -> ForcedScores:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            if self.gate is not None:
                await self.gate.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_running -= 1
        if self.error is not None:
            raise self.error
        before = [prompt_ids[-1], *response_ids[:-1]]
        values = [score_of(one, token) for one, token in zip(before, response_ids, strict=True)]
        logprobs = np.array(values, np.float32)
        rows = candidate_ids or ([list(range(top_k))] * len(response_ids) if top_k else None)
        if rows is None:
            return ForcedScores(logprobs)
        ids = np.array(rows, np.int32)
        scores = -2.0 - ids.astype(np.float64)
        return ForcedScores(logprobs, ids, scores.astype(np.float32), tail_logprobs(scores))


class ProbedEngine:
    """Stands for ``TeacherEngine``: probed from the start; ``report = None`` is one that nobody reaches."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.report: object | None = "probed"
        self.problem: str | None = None

    async def prepared(self) -> Scorer:
        if self.report is None:
            raise DependencyError("prm-engine", "nobody there")
        return self.scorer


@asynccontextmanager
async def served(**prm: Any) -> AsyncIterator[tuple[TeacherDeps, Scorer, grpc.aio.Channel]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = Config.model_validate({"prm": {"grpc_port": port, **prm}})
    scorer = Scorer()
    nothing: Any = None
    probed: Any = ProbedEngine(scorer)
    deps = TeacherDeps(
        config=config,
        broker=nothing,
        needs=signal_needs(config),
        renderer=nothing,
        engine=probed,
        metrics=nothing,
    )
    target = config.prm.grpc_target
    async with grpc_server.listening(deps), grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS) as channel:
        yield deps, scorer, channel


def request(prompt: Sequence[int] = (0, 1), response: Sequence[int] = (2, 3), **fields: Any) -> ScoreRequest:
    return ScoreRequest(
        prompt_ids=to_tensor(list(prompt), "int32"), response_ids=to_tensor(list(response), "int32"), **fields
    )


def stub_of(channel: grpc.aio.Channel) -> Any:
    return ForcedScoringStub(channel)  # type: ignore[no-untyped-call]


async def score(channel: grpc.aio.Channel, asked: ScoreRequest, **options: Any) -> ScoreReply:
    found: ScoreReply = await stub_of(channel).Score(asked, **options)
    return found


async def failure(channel: grpc.aio.Channel, asked: ScoreRequest, **options: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await score(channel, asked, **options)
    return caught.value.code(), caught.value.details() or ""


def floats(tensor: Tensor, dtype: str, ndim: int) -> np.ndarray[Any, Any]:
    return to_array(tensor, "field", dtypes=(dtype,), ndim=ndim)


async def test_a_response_is_scored_and_packed() -> None:
    async with served() as (_, _, channel):
        found = await score(channel, request(top_k=2, request_id="r1"))
        np.testing.assert_allclose(floats(found.logprobs, "float32", 1), [score_of(1, 2), score_of(2, 3)], rtol=1e-6)
        assert floats(found.topk_ids, "int32", 2).tolist() == [[0, 1], [0, 1]]
        assert floats(found.topk_logprobs, "float16", 2).tolist() == [[-2.0, -3.0]] * 2
        tail = np.log(1 - np.exp(-2.0) - np.exp(-3.0))
        np.testing.assert_allclose(floats(found.tail_logprobs, "float32", 1), [tail, tail], rtol=1e-6)
        assert (found.model, found.dialect, found.temperature) == ("teacher", "fake", 1.0)
        assert (found.num_prompt_tokens, found.num_response_tokens, found.request_id) == (2, 2, "r1")
        wide = await score(channel, request(top_k=2, topk_dtype="float32"))
        assert wide.topk_logprobs.dtype == "float32"
        plain = await score(channel, request())
        assert not plain.topk_ids.dtype
        assert not plain.tail_logprobs.dtype


async def test_the_callers_candidates_are_scored_in_their_order() -> None:
    async with served() as (_, scorer, channel):
        chosen = [[3, 0], [1, 2], [2, 0]]
        asked = request(response=[2, 3, 1], candidate_ids=to_tensor(chosen, "int32"), topk_dtype="float32")
        found = await score(channel, asked)
        assert floats(found.topk_logprobs, "float32", 2).tolist() == [[-5.0, -2.0], [-3.0, -4.0], [-4.0, -2.0]]
        assert not found.topk_ids.dtype
        np.testing.assert_allclose(
            floats(found.tail_logprobs, "float32", 1)[0], np.log(1 - np.exp(-5.0) - np.exp(-2.0)), rtol=1e-6
        )
        scorer.error = UnsupportedError("this engine scores no given candidates")
        assert await failure(channel, asked) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "this engine scores no given candidates",
        )


@pytest.mark.parametrize(
    ("asked", "begins"),
    [
        (ScoreRequest(response_ids=to_tensor([1], "int32")), "prompt_ids: dtype ''"),
        (request(response=[]), "response_ids: empty"),
        (request(response=[1, VOCAB]), f"response_ids: token 1 is {VOCAB}, outside the vocabulary"),
        (request(prompt=[-1]), "prompt_ids: token 0 is -1"),
        (ScoreRequest(prompt_ids=to_tensor([[1]], "int32"), response_ids=to_tensor([1], "int32")), "prompt_ids: shape"),
        (ScoreRequest(prompt_ids=to_tensor([1], "int64"), response_ids=to_tensor([1], "int32")), "prompt_ids: dtype"),
        (request(top_k=5000), "top_k: 5000"),
        (request(topk_dtype="bfloat16"), "topk_dtype: 'bfloat16'"),
        (request(top_k=1, candidate_ids=to_tensor([[1], [2]], "int32")), "candidate_ids: given together with top_k"),
        (request(candidate_ids=to_tensor([[1, 2]], "int32")), "candidate_ids: shape [1, 2], expected [2, K]"),
        (request(candidate_ids=to_tensor([[1], [9]], "int32")), "candidate_ids: an id is outside"),
        (request(candidate_ids=to_tensor([[1, 1], [1, 2]], "int32")), "candidate_ids: an id stands twice"),
    ],
)
async def test_a_wrong_field_is_named(asked: ScoreRequest, begins: str) -> None:
    async with served() as (_, scorer, channel):
        code, details = await failure(channel, asked)
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith(begins)
        assert scorer.most_running == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DependencyError("prm-engine", "gone"), grpc.StatusCode.UNAVAILABLE),
        (RefusedError("http://engine", 400, "logprobs is above 20"), grpc.StatusCode.FAILED_PRECONDITION),
        (TooLongError("5001 tokens"), grpc.StatusCode.OUT_OF_RANGE),
        (ProbeError("another vocabulary"), grpc.StatusCode.FAILED_PRECONDITION),
        (MissingError("null"), grpc.StatusCode.DATA_LOSS),
        (MisalignedError("shifted"), grpc.StatusCode.DATA_LOSS),
        (WrongIdsError("top_k is 64; the vocabulary has 9 tokens"), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_an_engine_s_failure_has_its_code(error: Exception, code: grpc.StatusCode) -> None:
    async with served() as (_, scorer, channel):
        scorer.error = error
        found, details = await failure(channel, request(top_k=2))
        assert found == code
        assert str(error) in details
        scorer.error = None
        assert (await score(channel, request())).num_response_tokens == 2


async def test_another_model_than_the_one_asked_for_is_a_precondition() -> None:
    async with served() as (_, _, channel):
        assert await failure(channel, request(model="another")) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "model: 'another' is asked, 'teacher' teaches here",
        )
        assert (await score(channel, request(model="teacher"))).model == "teacher"


async def test_an_engine_that_was_never_reached_is_unavailable() -> None:
    async with served() as (deps, _, channel):
        deps.engine.report = None  # type: ignore[misc]
        code, _ = await failure(channel, request())
        assert code == grpc.StatusCode.UNAVAILABLE


async def test_a_stream_gives_every_sequence_in_parts() -> None:
    async with served() as (_, _, channel):
        long = [int(token) for token in np.random.default_rng(0).integers(0, VOCAB, 25)]
        asked = [request(response=long, top_k=1), request(response=[9]), request(response=[1], request_id="last")]
        stream = stub_of(channel).ScoreStream(ScoreStreamRequest(sequences=asked, part_tokens=10))
        parts: dict[int, list[ScorePart]] = {0: [], 1: [], 2: []}
        async for part in stream:
            parts[part.sequence].append(part)
        assert [(part.start, part.last) for part in parts[0]] == [(0, False), (10, False), (20, True)]
        joined = np.concatenate([floats(part.reply.logprobs, "float32", 1) for part in parts[0]])
        whole = await score(channel, asked[0])
        np.testing.assert_array_equal(joined, floats(whole.logprobs, "float32", 1))
        assert {part.reply.num_response_tokens for part in parts[0]} == {25}
        (broken,) = parts[1]
        assert (broken.status, broken.last, broken.HasField("reply")) == ("INVALID_ARGUMENT", True, False)
        assert "outside the vocabulary" in broken.message
        assert [part.reply.request_id for part in parts[2]] == ["last"]


async def test_a_stream_keeps_no_more_than_max_concurrency_going() -> None:
    async with served(max_concurrency=3) as (_, scorer, channel):
        stream = stub_of(channel).ScoreStream(ScoreStreamRequest(sequences=[request()] * 9))
        assert sorted([part.sequence async for part in stream]) == list(range(9))
        assert scorer.most_running == 3


async def test_long_answers_with_many_candidates_pass() -> None:
    async with served() as (_, _, channel):
        found = await score(channel, request(response=[1] * 4096, top_k=64))
        assert tuple(found.topk_logprobs.shape) == (4096, 64)
        assert found.ByteSize() < 1_650_000


async def test_a_passed_deadline_and_a_cancelled_call_end_the_engine_s_request() -> None:
    async with served() as (_, scorer, channel):
        scorer.gate = asyncio.Event()
        code, _ = await failure(channel, request(), timeout=1.5)
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        call = stub_of(channel).ScoreStream(ScoreStreamRequest(sequences=[request()] * 3))
        reading = asyncio.create_task(call.read())
        await eventually(lambda: scorer.num_running == 3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await eventually(lambda: scorer.num_cancelled == 4)
        assert scorer.num_running == 0


async def test_too_many_requests_are_told_to_come_again() -> None:
    async with served(grpc_max_requests=2) as (_, scorer, channel):
        scorer.gate = asyncio.Event()
        waiting = [asyncio.create_task(score(channel, request())) for _ in range(2)]
        await eventually(lambda: scorer.num_running == 2)
        code, details = await failure(channel, request())
        assert (code, "prm.grpc_max_requests" in details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
        scorer.gate.set()
        await asyncio.gather(*waiting)
        assert (await score(channel, request())).model == "teacher"


async def test_keys_are_those_of_the_http_routes() -> None:
    async with served(api_keys=["hl-secret"]) as (_, _, channel):
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            code, details = await failure(channel, request(), metadata=metadata)
            assert (code, "prm.api_keys" in details) == (grpc.StatusCode.UNAUTHENTICATED, True)
        stream = stub_of(channel).ScoreStream(ScoreStreamRequest(sequences=[request()]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        for metadata in ((("authorization", "Bearer hl-secret"),), (("x-api-key", "hl-secret"),)):
            assert (await score(channel, request(), metadata=metadata)).model == "teacher"
        assert await health_of(channel, SERVICE_NAME) == health_pb2.HealthCheckResponse.SERVING


async def health_of(channel: grpc.aio.Channel, service: str) -> Any:
    stub = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


async def test_health_follows_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "READINESS_INTERVAL_S", 0.01)
    async with served() as (deps, _, channel):
        states = health_pb2.HealthCheckResponse
        assert await health_of(channel, "") == states.SERVING
        assert await health_of(channel, SERVICE_NAME) == states.SERVING
        deps.engine.problem = "another vocabulary"  # type: ignore[misc]
        await health_becomes(channel, states.NOT_SERVING)
        assert await health_of(channel, "") == states.SERVING
        deps.engine.problem = None  # type: ignore[misc]
        await health_becomes(channel, states.SERVING)
        deps.engine.report = None  # type: ignore[misc]
        await health_becomes(channel, states.NOT_SERVING)


async def health_becomes(channel: grpc.aio.Channel, state: Any) -> None:
    async with asyncio.timeout(60):
        while await health_of(channel, SERVICE_NAME) != state:
            await asyncio.sleep(0.01)


async def test_reflection_describes_the_service() -> None:
    async with served() as (_, _, channel):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = await call.read()
        assert SERVICE_NAME in [service.name for service in listed.list_services_response.service]
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE_NAME))
        described = await call.read()
        assert described.file_descriptor_response.file_descriptor_proto
        await call.done_writing()


async def test_a_taken_port_is_named() -> None:
    async with served() as (deps, _, _):
        with pytest.raises(ConfigError, match=r"prm\.grpc_port: cannot listen on 127\.0\.0\.1:\d+"):
            async with grpc_server.listening(deps):
                pass


async def eventually(holds: Any) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)
