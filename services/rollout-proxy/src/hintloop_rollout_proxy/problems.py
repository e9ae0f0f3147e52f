"""Finds what makes a captured answer unusable. Owns the checks and their order; drops nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from hintloop_contract.messages import DropReason

from hintloop_rollout_proxy.engines.dialect import Answer

#: vLLM's chat API writes this where a log-probability is missing or minus infinity.
PLACEHOLDER = -9999.0
MAX_TOKEN_ID = 2**31 - 1

Problem = tuple[DropReason, str]


def find_problem(answer: Answer) -> Problem | None:
    """The first reason why a complete answer cannot be trained, or ``None``."""
    if answer.fault is not None:
        return DropReason(answer.fault[0]), answer.fault[1]
    if answer.prompt_ids is None or answer.response_ids is None:
        missing = "prompt" if answer.prompt_ids is None else "response"
        return DropReason.IDS_MISSING, f"the engine gave no {missing} token ids"
    odd = check_ids(answer.prompt_ids) or check_ids(answer.response_ids)
    if odd is not None:
        return odd
    num_ids = len(answer.response_ids)
    if not num_ids or not _says_something(answer):
        return DropReason.EMPTY, f"{num_ids} tokens without text or tool call"
    if answer.logprobs is None:
        return DropReason.LOGPROB_MISSING, "the engine gave no log-probabilities"
    num_logprobs, usage = len(answer.logprobs), answer.usage_completion_tokens
    if not num_ids == num_logprobs == usage:
        return (
            DropReason.COUNT_MISMATCH,
            f"{num_ids} ids, {num_logprobs} log-probabilities, usage.completion_tokens {usage}",
        )
    return check_logprobs(answer.logprobs)


def check_ids(ids: Sequence[int]) -> Problem | None:
    """A token id is a non-negative int32."""
    for position, token in enumerate(ids):
        if not 0 <= token <= MAX_TOKEN_ID:
            return DropReason.IDS_MISSING, f"token id {token} at token {position} is no non-negative 32-bit integer"
    return None


def check_logprobs(logprobs: Sequence[float | None]) -> Problem | None:
    """A log-probability is missing when null, NaN, infinite, positive or the engine's placeholder."""
    for position, value in enumerate(logprobs):
        if value is None or not math.isfinite(value) or value > 0.0 or value == PLACEHOLDER:
            return DropReason.LOGPROB_MISSING, f"log-probability {value} at token {position}"
    return None


def _says_something(answer: Answer) -> bool:
    if answer.message_json is not None:
        return message_says_something(answer.message_json)
    message = answer.message
    return any(message.get(key) for key in ("content", "tool_calls", "reasoning_content", "reasoning", "refusal"))


def message_says_something(message_json: bytes) -> bool:
    """Whether an assistant message has text, a tool call or reasoning."""
    message = msgspec.json.decode(message_json)
    if not isinstance(message, dict):
        return False
    return any(message.get(key) for key in ("content", "tool_calls", "reasoning_content", "reasoning", "refusal"))
