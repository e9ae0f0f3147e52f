"""What travels over HTTP: bodies with their examples."""

from __future__ import annotations

from typing import Annotated, Any, Self

from hintloop_contract.problems import ProblemReply, problem
from pydantic import BaseModel, ConfigDict, Field, model_validator

from hintloop_teacher.dialects.base import EngineFacts
from hintloop_teacher.forced import ForcedScores

#: More candidates than this no engine gives; it bounds what one request can make us hold.
MAX_TOP_K = 4096

TokenId = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
Ids = Annotated[list[TokenId], Field(min_length=1)]


class ForcedBody(BaseModel):
    """Score ``response_ids`` (T tokens) behind ``prompt_ids``, with candidates at each place or without."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [
                {"prompt_ids": [1, 4093, 198, 1780, 314], "response_ids": [260, 3575], "top_k": 2},
                {
                    "prompt_ids": [1, 4093, 198, 1780, 314],
                    "response_ids": [260, 3575],
                    "candidate_ids": [[260, 253], [3575, 3193]],
                },
            ]
        },
    )

    prompt_ids: Ids
    """Token ids before the response, as the policy engine renders them."""
    response_ids: Ids
    """Token ids to score: those that were sampled, never re-encoded text."""
    top_k: Annotated[int, Field(ge=0, le=MAX_TOP_K, strict=True)] = 0
    """The teacher's own most likely candidates per token; 0 for none."""
    candidate_ids: list[Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOP_K)]] | None = None
    """Given candidates instead, K distinct ids per response token; `GET /v1/prm` says whether the engine can."""
    model: str | None = None
    """The teacher's model; another than the one that teaches here is refused."""

    @model_validator(mode="after")
    def _either(self) -> Self:
        if self.candidate_ids is not None and self.top_k:
            raise ValueError(f"candidate_ids: given together with top_k {self.top_k}; ask for one of them")
        return self


class ForcedReply(BaseModel):
    """Log-probabilities in nats at temperature 1, entry t for response token t given everything before it."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [
                {
                    "logprobs": [-0.6158, -6.1523],
                    "topk_ids": [[260, 253], [3193, 476]],
                    "topk_logprobs": [[-0.6158, -1.7083], [-3.2824, -3.5103]],
                    "tail_logprobs": [-1.2902, -0.0694],
                    "model": "policy",
                    "dialect": "vllm",
                    "temperature": 1.0,
                }
            ]
        },
    )

    logprobs: list[float]
    """[T]"""
    topk_ids: list[list[int]] | None = None
    """[T, K], most likely first; given candidates in the order given."""
    topk_logprobs: list[list[float]] | None = None
    """[T, K]"""
    tail_logprobs: list[float] | None = None
    """[T]: log of the mass outside the K candidates."""
    model: str
    """The teacher's model."""
    dialect: str
    """How its engine was asked."""
    temperature: float = 1.0
    """Always 1."""


def _problem(description: str, reason: str, message: str, field: str | None = None) -> dict[str, Any]:
    example = {"detail": problem(reason, message, field)}
    return {"model": ProblemReply, "description": description, "content": {"application/json": {"example": example}}}


#: How ``POST /v1/forced_logprobs`` answers besides 200 and 401.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    413: _problem(
        "The body is too large", "too_large", "the body has more than 33554432 bytes; ask in parts, or over gRPC"
    ),
    422: _problem(
        "The request is wrong, or the engine cannot do it",
        "invalid",
        "response_ids[0]: -1: Input should be greater than or equal to 0",
        "response_ids[0]",
    ),
    502: _problem(
        "The engine's answer is not of the tokens asked: nothing of it is passed on",
        "teacher_missing",
        "the log-probability of response token 3 is null",
    ),
    503: _problem(
        "The engine is away, or cannot teach", "prm_engine", "prm-engine is not available: connection refused"
    ),
}

#: An answer of ``GET /v1/prm``.
PRM_EXAMPLE: dict[str, Any] = {
    "teacher": {
        "probed": True,
        "needed": True,
        "dialect": "sglang",
        "version": "0.5.23",
        "model": "policy",
        "max_input_len": 4089,
        "vocabulary_size": 49152,
        "top_k": 64,
        "checks": {"vocabulary": "equal to the student's", "forced_scoring": "aligned", "top_k": "64 candidates"},
        "url": "http://127.0.0.1:30001",
        "tokenizer": "0f1e2d3c4b5a6978",
        "limits": {
            "max_top_k": 1024,
            "first_entry": "null",
            "temperature": "scores are at 1, whatever the request's temperature",
            "given_candidates": "one list of ids for all places of a request, at most 512 unless one place has more",
            "chunks": "answers of more than 1024 tokens (prm.score_chunk_tokens) take several requests",
        },
        "problem": None,
        "problem_reason": None,
        "control": None,
    }
}


def reply(scores: ForcedScores, facts: EngineFacts) -> ForcedReply:
    """Scores as JSON."""

    def listed(array: Any) -> Any:
        return None if array is None else array.tolist()

    return ForcedReply(
        logprobs=scores.logprobs.tolist(),
        topk_ids=listed(scores.topk_ids),
        topk_logprobs=listed(scores.topk_logprobs),
        tail_logprobs=listed(scores.tail_logprobs),
        model=facts.model,
        dialect=facts.dialect,
    )
