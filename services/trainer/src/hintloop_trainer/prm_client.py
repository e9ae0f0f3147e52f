"""The trainer's calls to `_prm_url`: gRPC `ForcedScoring`, packed. Owns the connection and what its failures mean.

A call runs in the background loop. The service away, too busy or too slow is a ``DependencyError``: the trainer waits,
and acknowledges nothing. What is wrong with one sample is told beside the others' scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hintloop_contract.config.signal import PrmSection
from hintloop_contract.errors import DependencyError, MessageError
from hintloop_contract.messages import DropReason
from hintloop_contract.scoring.channel import CLIENT_OPTIONS, MAX_MESSAGE_BYTES, SERVICE_NAME
from hintloop_contract.scoring.packing import PLANES, to_packed
from hintloop_contract.scoring.v1.scoring_pb2 import ScorePart, ScoreRequest, ScoreStreamRequest, Tensor
from hintloop_contract.scoring.v1.scoring_pb2_grpc import ForcedScoringStub
from hintloop_contract.tensors import PackedArray

from hintloop_trainer.errors import ScoringRefusedError

DEPENDENCY = "prm"
#: What `prm.grpc_compression` asks for.
ENCODINGS = {"none": "", "zstd": PLANES}
HEALTH_TIMEOUT_S = 5.0
#: Most bytes of arrays in one request, unless a single question has more.
REQUEST_BYTES = MAX_MESSAGE_BYTES // 4
#: What a message has around one question.
OVERHEAD_BYTES = 1024

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

    async def score(
        self, questions: Sequence[Question], known: dict[int, Answer | Unscorable] | None = None
    ) -> list[Answer | Unscorable]:
        """Scores of every question, in order.

        Args:
            questions: what to score.
            known: answers by the questions' index that are there already: they are not asked again. Those that come
                in are added as they do, so that a failure costs none of them.

        Raises:
            DependencyError: the service, or the engine behind it, is away.
            ScoringRefusedError: it cannot do what is asked, or the key is not known to it.
        """
        known = {} if known is None else known
        refused: dict[int, str] = {}
        for group in self._groups(questions, known):
            refused.update(await self._ask(group, known))
        if refused:
            raise ScoringRefusedError(f"{self._section.grpc_target}: {min(refused.items())[1]}", tuple(refused))
        return [known[index] for index in range(len(questions))]

    def _groups(
        self, questions: Sequence[Question], known: dict[int, Answer | Unscorable]
    ) -> Iterator[dict[int, ScoreRequest]]:
        """What is still to be asked, by index, in requests that fit a message."""
        group: dict[int, ScoreRequest] = {}
        size = 0
        for index, question in enumerate(questions):
            if index in known:
                continue
            request = self._request(question)
            if request.ByteSize() > MAX_MESSAGE_BYTES - OVERHEAD_BYTES:
                detail = f"{request.ByteSize()} bytes in one question; a message holds {MAX_MESSAGE_BYTES}"
                known[index] = Unscorable(DropReason.TOO_LONG, detail)
                continue
            if group and size + request.ByteSize() > REQUEST_BYTES:
                yield group
                group, size = {}, 0
            group[index] = request
            size += request.ByteSize()
        if group:
            yield group

    def _request(self, question: Question) -> ScoreRequest:
        chosen = question.candidate_ids
        return ScoreRequest(
            prompt_ids=_tensor(question.prompt_ids),
            response_ids=_tensor(question.response_ids),
            candidate_ids=None if chosen is None else _tensor(chosen),
            topk_dtype=self._topk_dtype,
            encoding=ENCODINGS[self._section.grpc_compression],
        )

    async def _ask(self, requests: dict[int, ScoreRequest], known: dict[int, Answer | Unscorable]) -> dict[int, str]:
        """Add answers to ``known``; gives what the service refuses, by index."""
        section, indices = self._section, list(requests)
        # The service works on a few at a time; each may take as long as one alone.
        timeout_s = section.deadline_s * math.ceil(len(requests) / section.max_concurrency)
        parts: dict[int, list[ScorePart]] = {index: [] for index in indices}
        refused: dict[int, str] = {}
        failure: DependencyError | None = None
        try:
            call = ForcedScoringStub(self._open()).ScoreStream(  # type: ignore[no-untyped-call]
                ScoreStreamRequest(sequences=requests.values()), timeout=timeout_s, metadata=self._metadata
            )
            async for part in call:
                index = indices[part.sequence] if part.sequence < len(indices) else -1
                if index not in parts:
                    call.cancel()
                    detail = f"{section.grpc_target} answered what was not asked, sequence {part.sequence}"
                    raise DependencyError(DEPENDENCY, detail)
                parts[index].append(part)
                if part.status and part.status not in _DROPS:
                    # The others go on: none that is answered is asked again.
                    error = self._failure(part.status, part.message)
                    if isinstance(error, DependencyError):
                        failure = failure or error
                    else:
                        refused[index] = part.message
                    del parts[index]
                elif part.last:
                    known[index] = _joined(parts.pop(index), requests[index])
        except grpc.aio.AioRpcError as error:
            raise self._failure(error.code().name, error.details() or "") from error
        if failure is None and parts:
            failure = DependencyError(DEPENDENCY, f"{section.grpc_target} ended a stream before its end")
        if failure is not None:
            raise failure
        return refused

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


def _joined(parts: Sequence[ScorePart], request: ScoreRequest) -> Answer | Unscorable:
    """One question's answer from its parts."""
    if parts[-1].status:
        return Unscorable(_DROPS[parts[-1].status], parts[-1].message)
    num_tokens, width = request.response_ids.shape[0], [*request.candidate_ids.shape[1:]]
    dtype = (request.topk_dtype,)
    try:
        logprobs = _array(parts, "logprobs", ("float32",), [num_tokens])
        topk = _array(parts, "topk_logprobs", dtype, [num_tokens, *width]) if width else None
        tail = _array(parts, "tail_logprobs", ("float32",), [num_tokens]) if width else None
    except MessageError as error:
        return Unscorable(DropReason.TEACHER_MISALIGNED, str(error))
    return Answer(logprobs, topk, tail, model=parts[0].reply.model)


def _array(parts: Sequence[ScorePart], name: str, dtypes: tuple[str, ...], shape: list[int]) -> PackedArray:
    """A field of consecutive parts as one array. Raises ``MessageError`` when it is another one than was asked."""
    pieces: list[PackedArray] = []
    num_rows = 0
    for part in parts:
        if part.start != num_rows:
            raise MessageError(f"a part begins at token {part.start}, expected is {num_rows}")
        pieces.append(to_packed(getattr(part.reply, name), name, dtypes=dtypes, ndim=len(shape)))
        num_rows += len(pieces[-1])
    found = [num_rows, *shape[1:]]
    if found != shape or any([*piece.shape[1:]] != shape[1:] for piece in pieces):
        raise MessageError(f"{name} have shape {[num_rows, *pieces[0].shape[1:]]}, expected {shape}")
    data = pieces[0].data if len(pieces) == 1 else b"".join(piece.data for piece in pieces)
    return PackedArray(dtype=pieces[0].dtype, shape=tuple(shape), data=data)
