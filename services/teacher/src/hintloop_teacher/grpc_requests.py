"""A gRPC request, read and checked before any engine is asked; and the reply's packing. No engine, no connection.

Legend: P = prompt tokens, T = response tokens, K = candidates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from hintloop_contract.errors import MessageError
from hintloop_contract.scoring.channel import DEFAULT_PART_TOKENS, TOPK_DTYPES
from hintloop_contract.scoring.packing import ENCODINGS, is_given, to_array, to_tensor
from hintloop_contract.scoring.v1.scoring_pb2 import ScorePart, ScoreReply, ScoreRequest, Tensor

from hintloop_teacher.dialects.base import EngineFacts
from hintloop_teacher.errors import FieldError
from hintloop_teacher.forced import ForcedScores

#: More candidates than this no engine gives; it bounds what one request can make us hold.
MAX_TOP_K = 4096


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request. ``candidates``: T rows of K ids that the caller chose, or ``None``."""

    prompt_ids: list[int]
    response_ids: list[int]
    top_k: int = 0
    candidates: list[list[int]] | None = None
    topk_dtype: str = TOPK_DTYPES[0]
    model: str = ""
    request_id: str = ""
    encoding: str = ""


def read(request: ScoreRequest, vocabulary_size: int) -> Asked:
    """Check a request.

    Raises:
        FieldError: a field is missing, of another shape, or out of range; the message begins with its name.
    """
    prompt_ids = _ids(request.prompt_ids, "prompt_ids", vocabulary_size)
    response_ids = _ids(request.response_ids, "response_ids", vocabulary_size)
    if request.topk_dtype not in ("", *TOPK_DTYPES):
        raise FieldError(f"topk_dtype: {request.topk_dtype!r}, expected {' or '.join(TOPK_DTYPES)}")
    if request.top_k > MAX_TOP_K:
        raise FieldError(f"top_k: {request.top_k}, at most {MAX_TOP_K} can be asked")
    candidates = None
    if is_given(request.candidate_ids):
        if request.top_k:
            raise FieldError("candidate_ids: given together with top_k; ask for one of them")
        candidates = _candidates(request.candidate_ids, len(response_ids), vocabulary_size)
    return Asked(
        prompt_ids,
        response_ids,
        request.top_k,
        candidates,
        request.topk_dtype or TOPK_DTYPES[0],
        request.model,
        request.request_id,
        # An encoding that this version does not know is one that it does not use.
        request.encoding if request.encoding in ENCODINGS else "",
    )


def _ids(tensor: Tensor, name: str, vocabulary_size: int) -> list[int]:
    try:
        ids = to_array(tensor, name, dtypes=("int32",), ndim=1)
    except MessageError as error:
        raise FieldError(str(error)) from None
    if not ids.size:
        raise FieldError(f"{name}: empty; at least one token is needed")
    outside = (ids < 0) | (ids >= vocabulary_size)
    if outside.any():
        at = int(outside.argmax())
        raise FieldError(f"{name}: token {at} is {ids[at]}, outside the vocabulary of {vocabulary_size} tokens")
    listed: list[int] = ids.tolist()
    return listed


def _candidates(tensor: Tensor, num_tokens: int, vocabulary_size: int) -> list[list[int]]:
    try:
        ids_TK = to_array(tensor, "candidate_ids", dtypes=("int32",), ndim=2)
    except MessageError as error:
        raise FieldError(str(error)) from None
    if ids_TK.shape[0] != num_tokens or not 1 <= ids_TK.shape[1] <= MAX_TOP_K:
        raise FieldError(
            f"candidate_ids: shape {list(ids_TK.shape)}, expected [{num_tokens}, K] with 1 <= K <= {MAX_TOP_K}"
        )
    if ids_TK.min() < 0 or ids_TK.max() >= vocabulary_size:
        raise FieldError(f"candidate_ids: an id is outside the vocabulary of {vocabulary_size} tokens")
    sorted_TK = np.sort(ids_TK, axis=1)
    if (sorted_TK[:, 1:] == sorted_TK[:, :-1]).any():
        raise FieldError("candidate_ids: an id stands twice in a row")
    listed: list[list[int]] = ids_TK.tolist()
    return listed


def reply(
    asked: Asked, scores: ForcedScores, facts: EngineFacts, start: int = 0, stop: int | None = None
) -> ScoreReply:
    """The packed scores of response tokens ``start`` to ``stop``."""
    span = slice(start, stop)
    found = ScoreReply(
        logprobs=to_tensor(scores.logprobs[span], "float32", asked.encoding),
        model=facts.model,
        dialect=facts.dialect,
        temperature=1.0,
        num_prompt_tokens=len(asked.prompt_ids),
        num_response_tokens=len(asked.response_ids),
        request_id=asked.request_id,
    )
    if scores.topk_logprobs is not None and scores.topk_ids is not None and scores.tail_logprobs is not None:
        found.topk_logprobs.CopyFrom(to_tensor(scores.topk_logprobs[span], asked.topk_dtype, asked.encoding))
        found.tail_logprobs.CopyFrom(to_tensor(scores.tail_logprobs[span], "float32", asked.encoding))
        if asked.candidates is None:
            found.topk_ids.CopyFrom(to_tensor(scores.topk_ids[span], "int32", asked.encoding))
    return found


def parts(sequence: int, asked: Asked, scores: ForcedScores, facts: EngineFacts, size: int) -> Iterator[ScorePart]:
    """The reply in parts of at most ``size`` tokens (0: :data:`DEFAULT_PART_TOKENS`)."""
    step, num_tokens = size or DEFAULT_PART_TOKENS, len(asked.response_ids)
    for start in range(0, num_tokens, step):
        piece = reply(asked, scores, facts, start, start + step)
        yield ScorePart(sequence=sequence, start=start, reply=piece, last=start + step >= num_tokens)
