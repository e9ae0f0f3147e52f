"""A gRPC `ForcedScoring` in the process that scores by a function; it can be stopped, wrong, or ask for a key."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from hintloop_contract.scoring.channel import SERVER_OPTIONS, SERVICE_NAME
from hintloop_contract.scoring.packing import is_given, to_array, to_tensor
from hintloop_contract.scoring.v1 import scoring_pb2_grpc
from hintloop_contract.scoring.v1.scoring_pb2 import ScorePart, ScoreReply, ScoreRequest, ScoreStreamRequest

#: ``(prompt, response, candidates or None) -> (logprobs [T], candidates' log-probabilities [T, K] or None)``
ScoreFunction = Callable[[list[int], list[int], "list[list[int]] | None"], tuple[Any, Any]]


def flat(prompt: list[int], response: list[int], candidates: list[list[int]] | None) -> tuple[Any, Any]:
    """Every token has log-probability -2, every candidate -3."""
    rows = None if candidates is None else np.full(np.shape(candidates), -3.0)
    return np.full(len(response), -2.0), rows


@dataclass
class FakePrm(scoring_pb2_grpc.ForcedScoringServicer):
    """``statuses``: what the n-th sequence ever asked is answered with instead of scores."""

    score: ScoreFunction = flat
    key: str = ""
    part_tokens: int = 3
    statuses: dict[int, tuple[str, str]] = field(default_factory=dict)
    refusal: tuple[grpc.StatusCode, str] | None = None
    requests: list[ScoreRequest] = field(default_factory=list)
    port: int = 0
    server: Any = None

    async def start(self) -> None:
        if not self.port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        scoring_pb2_grpc.add_ForcedScoringServicer_to_server(self, self.server)
        checking = health.aio.HealthServicer()
        await checking.set(SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(checking, self.server)
        self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(0)
            self.server = None

    async def ScoreStream(self, request: ScoreStreamRequest, context: Any) -> Any:  # noqa: N802
        given = dict(context.invocation_metadata())
        if self.key and given.get("authorization") != f"Bearer {self.key}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown key")
        if self.refusal is not None:
            await context.abort(*self.refusal)
        # Last first: parts of different sequences come in any order.
        for index, sequence in reversed(list(enumerate(request.sequences))):
            number = len(self.requests)
            self.requests.append(sequence)
            if number in self.statuses:
                code, message = self.statuses[number]
                yield ScorePart(sequence=index, last=True, status=code, message=message)
                continue
            for part in self._parts(index, sequence):
                await asyncio.sleep(0)
                yield part

    def _parts(self, index: int, request: ScoreRequest) -> Sequence[ScorePart]:
        prompt = to_array(request.prompt_ids, "prompt_ids", dtypes=("int32",), ndim=1).tolist()
        response = to_array(request.response_ids, "response_ids", dtypes=("int32",), ndim=1).tolist()
        chosen = None
        if is_given(request.candidate_ids):
            chosen = to_array(request.candidate_ids, "candidate_ids", dtypes=("int32",), ndim=2).tolist()
        logprobs, rows = self.score(prompt, response, chosen)
        parts = []
        for start in range(0, len(response), self.part_tokens):
            span = slice(start, start + self.part_tokens)
            reply = ScoreReply(logprobs=to_tensor(logprobs[span], "float32"), model="teacher", temperature=1.0)
            if rows is not None:
                values = np.asarray(rows[span], np.float64)
                reply.topk_logprobs.CopyFrom(to_tensor(values, request.topk_dtype))
                reply.tail_logprobs.CopyFrom(to_tensor(np.log1p(-np.exp(values).sum(-1)), "float32"))
            parts.append(
                ScorePart(sequence=index, start=start, reply=reply, last=start + self.part_tokens >= len(response))
            )
        return parts
