"""The trainer's calls to `_prm_url`: gRPC `ForcedScoring`, packed. Owns the connection and what its failures mean.

A call runs in the background loop. The service away, too busy or too slow is a ``DependencyError``: the trainer waits,
and acknowledges nothing. What is wrong with one sample is told beside the others' scores.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

# The processes that are forked here (checkpoint writers) speak no gRPC; its fork handlers would only complain.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hintloop_contract.config.signal import PrmSection
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import DropReason
from hintloop_contract.scoring.channel import CLIENT_OPTIONS, MAX_MESSAGE_BYTES, SERVICE_NAME
from hintloop_contract.scoring.packing import PLANES, plain_data
from hintloop_contract.scoring.v1.scoring_pb2 import ScorePart, ScoreReply, ScoreRequest, ScoreStreamRequest, Tensor
from hintloop_contract.scoring.v1.scoring_pb2_grpc import ForcedScoringStub
from hintloop_contract.tensors import PackedArray

from hintloop_trainer.errors import ScoringRefusedError

DEPENDENCY = "prm"
#: What `prm.grpc_compression` asks for.
ENCODINGS = {"none": "", "zstd": PLANES}
#: Most bytes of arrays in one request; a message may hold more, but not much more.
HEALTH_TIMEOUT_S = 5.0
REQUEST_BYTES = MAX_MESSAGE_BYTES // 4

#: What a status of one sequence makes of its sample.
_DROPS = {
    "OUT_OF_RANGE": DropReason.TOO_LONG,
    "DATA_LOSS": DropReason.TEACHER_MISSING,
    "INVALID_ARGUMENT": DropReason.TEACHER_MISALIGNED,
}


@dataclass(frozen=True, slots=True)
class Question:
    """One answer to score: ``prompt_ids`` int32 [P], ``response_ids`` int32 [T], ``candidate_ids`` int32 [T, K]."""

    prompt_ids: PackedArray
    response_ids: PackedArray
    candidate_ids: PackedArray | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Nats at temperature 1: ``logprobs`` float32 [T]; with candidates ``topk_logprobs`` float16 or float32 [T, K] and
    ``tail_logprobs`` float32 [T]."""

    logprobs: PackedArray
    topk_logprobs: PackedArray | None
    tail_logprobs: PackedArray | None
    model: str


@dataclass(frozen=True, slots=True)
class Unscorable:
    """The sample is at fault, and drops as ``reason``."""

    reason: DropReason
    detail: str


class PrmClient:
    """Asks for forced scores. Made and used in one event loop."""

    def __init__(self, section: PrmSection, topk_dtype: str) -> None:
        """Connect at the first call. ``topk_dtype``: of the candidates' log-probabilities."""
        self._section = section
        self._topk_dtype = topk_dtype
        self._channel: grpc.aio.Channel | None = None
        key = section.caller_key.get_secret_value()
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()

    async def score(self, questions: Sequence[Question]) -> list[Answer | Unscorable]:
        """Scores of every question, in order.

        Raises:
            DependencyError: the service, or the engine behind it, is away.
            ScoringRefusedError: it cannot do what is asked, or the key is not known to it.
        """
        answers: list[Answer | Unscorable] = []
        group: list[ScoreRequest] = []
        size = 0
        for request in map(self._request, questions):
            if group and size + request.ByteSize() > REQUEST_BYTES:
                answers += await self._ask(group)
                group, size = [], 0
            group.append(request)
            size += request.ByteSize()
        return answers + (await self._ask(group) if group else [])

    def _request(self, question: Question) -> ScoreRequest:
        chosen = question.candidate_ids
        return ScoreRequest(
            prompt_ids=_tensor(question.prompt_ids),
            response_ids=_tensor(question.response_ids),
            candidate_ids=None if chosen is None else _tensor(chosen),
            topk_dtype=self._topk_dtype,
            encoding=ENCODINGS[self._section.grpc_compression],
        )

    async def _ask(self, requests: Sequence[ScoreRequest]) -> list[Answer | Unscorable]:
        section = self._section
        # The service works on a few at a time; each may take as long as one alone.
        timeout_s = section.deadline_s * math.ceil(len(requests) / section.max_concurrency)
        parts: list[list[ScorePart]] = [[] for _ in requests]
        try:
            call = ForcedScoringStub(self._open()).ScoreStream(  # type: ignore[no-untyped-call]
                ScoreStreamRequest(sequences=requests), timeout=timeout_s, metadata=self._metadata
            )
            async for part in call:
                parts[part.sequence].append(part)
        except grpc.aio.AioRpcError as error:
            raise self._failure(error.code().name, error.details() or "") from error
        return [self._joined(found, request) for found, request in zip(parts, requests, strict=True)]

    def _joined(self, parts: Sequence[ScorePart], request: ScoreRequest) -> Answer | Unscorable:
        if not parts or not parts[-1].last:
            raise DependencyError(DEPENDENCY, f"{self._section.grpc_target} ended a stream before its end")
        if status := parts[-1].status:
            if status in _DROPS:
                return Unscorable(_DROPS[status], parts[-1].message)
            raise self._failure(status, parts[-1].message)
        replies = [part.reply for part in parts]
        num_tokens = request.response_ids.shape[0]
        logprobs = _array(replies, "logprobs")
        if logprobs is None or logprobs.shape != (num_tokens,):
            found = None if logprobs is None else list(logprobs.shape)
            detail = f"logprobs have shape {found}, expected [{num_tokens}]"
            return Unscorable(DropReason.TEACHER_MISALIGNED, detail)
        return Answer(
            logprobs, _array(replies, "topk_logprobs"), _array(replies, "tail_logprobs"), model=replies[0].model
        )

    def _failure(self, code: str, details: str) -> DependencyError | ScoringRefusedError:
        target = self._section.grpc_target
        if code == "UNAUTHENTICATED":
            return ScoringRefusedError(f"prm.caller_key: {target} does not know this key ({details})")
        if code in ("FAILED_PRECONDITION", "UNIMPLEMENTED"):
            return ScoringRefusedError(f"{target}: {details}")
        return DependencyError(DEPENDENCY, f"{target}: {code}: {details}")

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._section.grpc_target, options=CLIENT_OPTIONS)
        return self._channel

    async def health(self) -> tuple[bool, str]:
        """Whether the service is there and its engine fit; else what was seen."""
        request = health_pb2.HealthCheckRequest(service=SERVICE_NAME)
        try:
            reply = await health_pb2_grpc.HealthStub(self._open()).Check(request, timeout=HEALTH_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return False, f"{self._section.grpc_target}: {error.code().name}: {error.details()}"
        if reply.status != health_pb2.HealthCheckResponse.SERVING:
            return False, f"{self._section.grpc_target} is up; the engine behind it is not, or is not fit to teach"
        return True, ""

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()


def _tensor(packed: PackedArray) -> Tensor:
    return Tensor(dtype=packed.dtype, shape=packed.shape, data=packed.data)


def _array(replies: Sequence[ScoreReply], name: str) -> PackedArray | None:
    """A field of consecutive parts as one array; ``None`` when it is absent."""
    tensors: list[Tensor] = [getattr(reply, name) for reply in replies]
    first = tensors[0]
    if not first.dtype:
        return None
    num_rows = sum(tensor.shape[0] for tensor in tensors)
    data = plain_data(first) if len(tensors) == 1 else b"".join(map(plain_data, tensors))
    return PackedArray(dtype=first.dtype, shape=(num_rows, *first.shape[1:]), data=data)
