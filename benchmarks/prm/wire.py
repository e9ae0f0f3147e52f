"""Packed gRPC against JSON over HTTP: what one reply of forced scores costs on the wire and at both ends.

The teacher's own routes are served, with a scorer that answers at once; bytes are counted by a proxy between client
and server, headers and frames included. Times are medians, in milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp
import grpc
import numpy as np
import uvicorn
from fastapi import FastAPI
from hintloop_contract.config.needs import signal_needs
from hintloop_contract.config.schema import Config
from hintloop_contract.scoring.channel import CLIENT_OPTIONS
from hintloop_contract.scoring.packing import PLANES, to_array, to_tensor
from hintloop_contract.scoring.v1.scoring_pb2 import ScoreReply, ScoreRequest
from hintloop_contract.scoring.v1.scoring_pb2_grpc import ForcedScoringStub
from hintloop_teacher import app as teacher_app
from hintloop_teacher import grpc_requests, grpc_server
from hintloop_teacher.dialects.base import EngineFacts
from hintloop_teacher.forced import ForcedScores, tail_logprobs

from benchmarks.goals import Goal

NUM_PROMPT, NUM_TOKENS, NUM_CANDIDATES, VOCABULARY = 1024, 4096, 64, 151_936
REPEATS = 9
FACTS = EngineFacts("stand-in", "1", "teacher", None)
PATH = "/v1/forced_logprobs"
JSON = {"Content-Type": "application/json"}


@dataclass
class Question:
    """One request in the forms it has at both ends."""

    prompt_ids: list[int]
    response_ids: list[int]
    scores: ForcedScores

    def as_json(self) -> bytes:
        """Body of the HTTP request."""
        body = {"prompt_ids": self.prompt_ids, "response_ids": self.response_ids, "top_k": NUM_CANDIDATES}
        return json.dumps(body).encode()

    def as_message(self, encoding: str) -> ScoreRequest:
        """The gRPC request."""
        return ScoreRequest(
            prompt_ids=to_tensor(self.prompt_ids, "int32"),
            response_ids=to_tensor(self.response_ids, "int32"),
            top_k=NUM_CANDIDATES,
            encoding=encoding,
        )


def make_question() -> Question:
    """Random ids and sorted log-probabilities of every candidate, as an engine of that vocabulary gives them."""
    rng = np.random.default_rng(0)
    ids_TK = rng.integers(0, VOCABULARY, (NUM_TOKENS, NUM_CANDIDATES)).astype(np.int32)
    logits_TK = -np.sort(rng.exponential(3.0, (NUM_TOKENS, NUM_CANDIDATES)), axis=1)
    # The candidates hold 95 % of the mass.
    logprobs_TK = logits_TK - np.log(np.exp(logits_TK).sum(1, keepdims=True)) + np.log(0.95)
    scores = ForcedScores(
        logprobs_TK[:, 0].astype(np.float32), ids_TK, logprobs_TK.astype(np.float32), tail_logprobs(logprobs_TK)
    )
    prompt, response = rng.integers(0, VOCABULARY, NUM_PROMPT), rng.integers(0, VOCABULARY, NUM_TOKENS)
    return Question(prompt.tolist(), response.tolist(), scores)


def teacher(question: Question) -> Any:
    """The teacher's dependencies, with a scorer that answers at once."""

    async def score(*_: Any, **__: Any) -> ForcedScores:
        return question.scores

    config = Config.model_validate({"prm": {"grpc_port": free_port()}})
    scorer = SimpleNamespace(score=score, facts=FACTS, vocabulary_size=VOCABULARY)

    async def prepared() -> Any:
        return scorer

    return SimpleNamespace(
        config=config,
        needs=signal_needs(config),
        engine=SimpleNamespace(report="probed", problem=None, prepared=prepared),
    )


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@dataclass
class Counted:
    """Bytes that passed the proxy."""

    port: int
    up: int = 0
    down: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


@contextlib.asynccontextmanager
async def counting(port: int) -> AsyncIterator[Counted]:
    """A proxy in front of a local ``port`` that counts what passes."""
    counted = Counted(port=0)

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, name: str) -> None:
        try:
            while data := await source.read(1 << 16):
                setattr(counted, name, getattr(counted, name) + len(data))
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()
            with contextlib.suppress(ConnectionError):
                await sink.wait_closed()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
        for arguments in ((reader, to_writer, "up"), (to_reader, writer, "down")):
            task = asyncio.create_task(pump(*arguments))
            counted.tasks.add(task)
            task.add_done_callback(counted.tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    counted.port = server.sockets[0].getsockname()[1]
    try:
        yield counted
    finally:
        server.close()
        tasks = list(counted.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def http_served(app: FastAPI) -> AsyncIterator[int]:
    """The app under uvicorn."""
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", lifespan="off", timeout_keep_alive=600)
    )
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        await running


def median_ms(work: Callable[[], Any]) -> float:
    """Median time of ``work``."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


async def median_ms_async(work: Callable[[], Awaitable[Any]]) -> float:
    """Median time of ``work``."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        await work()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def arrays_of_json(body: bytes) -> list[Any]:
    """What a client makes of the JSON: arrays."""
    reply = json.loads(body)
    return [
        np.asarray(reply["logprobs"], np.float32),
        np.asarray(reply["topk_ids"], np.int32),
        np.asarray(reply["topk_logprobs"], np.float32),
        np.asarray(reply["tail_logprobs"], np.float32),
    ]


def arrays_of_message(data: bytes) -> list[Any]:
    """What a client makes of the message: the same arrays, as views."""
    reply = ScoreReply.FromString(data)
    return [
        to_array(reply.logprobs, "logprobs", dtypes=("float32",), ndim=1),
        to_array(reply.topk_ids, "topk_ids", dtypes=("int32",), ndim=2),
        to_array(reply.topk_logprobs, "topk_logprobs", dtypes=("float16",), ndim=2),
        to_array(reply.tail_logprobs, "tail_logprobs", dtypes=("float32",), ndim=1),
    ]


async def asgi(app: FastAPI, body: bytes) -> bytes:
    """The server's whole part of one HTTP request: bytes in, bytes out."""
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    headers = [(b"content-type", b"application/json"), (b"host", b"benchmark")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "scheme": "http",
    }
    await app(scope, receive, send)
    return b"".join(sent)


async def measure_http(question: Question) -> dict[str, float]:
    """JSON over HTTP."""
    app = FastAPI()
    app.include_router(teacher_app.router(teacher(question)))
    body = question.as_json()
    answer = await asgi(app, body)
    for ours, theirs in zip(
        arrays_of_json(answer)[:2], (question.scores.logprobs, question.scores.topk_ids), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    async with http_served(app) as port, counting(port) as counted, aiohttp.ClientSession() as session:

        async def ask() -> None:
            async with session.post(f"http://127.0.0.1:{counted.port}{PATH}", data=body, headers=JSON) as response:
                assert response.status == 200
                arrays_of_json(await response.read())

        await ask()
        wire = counted.up + counted.down
        return {
            "bytes_on_the_wire": wire,
            "client_encode_ms": median_ms(question.as_json),
            "server_decode_and_encode_ms": await median_ms_async(lambda: asgi(app, body)),
            "client_decode_ms": median_ms(lambda: arrays_of_json(answer)),
            "round_trip_ms": await median_ms_async(ask),
        }


async def measure_grpc(question: Question, encoding: str) -> dict[str, float]:
    """Packed gRPC, its larger arrays in ``encoding``."""
    deps = teacher(question)
    data = question.as_message(encoding).SerializeToString()

    def serve() -> bytes:
        asked = grpc_requests.read(ScoreRequest.FromString(data), VOCABULARY)
        return grpc_requests.reply(asked, question.scores, FACTS).SerializeToString()

    answer = serve()
    for ours, theirs in zip(
        arrays_of_message(answer)[:2], (question.scores.logprobs, question.scores.topk_ids), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    async with (
        grpc_server.listening(deps) as port,
        counting(port) as counted,
        grpc.aio.insecure_channel(f"127.0.0.1:{counted.port}", options=CLIENT_OPTIONS) as channel,
    ):
        stub = ForcedScoringStub(channel)  # type: ignore[no-untyped-call]

        async def ask() -> None:
            reply = await stub.Score(question.as_message(encoding))
            assert reply.num_response_tokens == NUM_TOKENS

        await ask()
        wire = counted.up + counted.down
        return {
            "bytes_on_the_wire": wire,
            "client_encode_ms": median_ms(lambda: question.as_message(encoding).SerializeToString()),
            "server_decode_and_encode_ms": median_ms(serve),
            "client_decode_ms": median_ms(lambda: arrays_of_message(answer)),
            "round_trip_ms": await median_ms_async(ask),
        }


async def run() -> tuple[list[Goal], dict[str, Any]]:
    """All three measured, against the goals."""
    question = make_question()
    http = await measure_http(question)
    packed, plain = await measure_grpc(question, PLANES), await measure_grpc(question, "")
    share = packed["bytes_on_the_wire"] / http["bytes_on_the_wire"]
    speedup = http["client_decode_ms"] / packed["client_decode_ms"]
    goals = [
        Goal("grpc_bytes_share_of_json", "at most", 0.2, round(share, 4)),
        Goal("grpc_decode_speedup", "at least", 10.0, round(speedup, 1), "times"),
    ]
    setting = {"response_tokens": NUM_TOKENS, "candidates": NUM_CANDIDATES, "prompt_tokens": NUM_PROMPT}
    return goals, {"setting": setting, "json_http": http, "grpc": packed, "grpc_plain": plain}
