"""Finds what makes a captured answer unusable. Owns the checks and their order; drops nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from hintloop_contract.messages import DropReason

from hintloop_rollout_proxy.engines.answer import Answer, Choice

#: vLLM's chat API writes this where a log-probability is missing or minus infinity.
PLACEHOLDER = -9999.0
#: What of an assistant message says something.
SAYING = ("content", "tool_calls", "reasoning_content", "reasoning", "refusal")

Problem = tuple[DropReason, str]

_message_decoder = msgspec.json.Decoder()


def find_problem(answer: Answer, choice: Choice) -> Problem | None:
    """The first reason why one choice of a complete answer cannot be trained, or ``None``."""
    fault = choice.fault or answer.prompt_fault
    if fault is not None:
        return DropReason(fault[0]), fault[1]
    if answer.prompt_ids is None or choice.response_ids is None:
        missing = "prompt" if answer.prompt_ids is None else "response"
        return DropReason.IDS_MISSING, f"the engine gave no {missing} token ids"
    num_ids = len(choice.response_ids)
    if not num_ids or not _says_something(choice):
        return DropReason.EMPTY, f"{num_ids} tokens without text or tool call"
    if choice.logprobs is None:
        return DropReason.LOGPROB_MISSING, "the engine gave no log-probabilities"
    num_logprobs, usage = len(choice.logprobs), usage_of(answer, choice)
    if not num_ids == num_logprobs == usage:
        counted = f"{answer.usage_completion_tokens} for all choices" if usage is None else usage
        return (
            DropReason.COUNT_MISMATCH,
            f"{num_ids} ids, {num_logprobs} log-probabilities, usage.completion_tokens {counted}",
        )
    return check_logprobs(choice.logprobs)


def usage_of(answer: Answer, choice: Choice) -> int | None:
    """Tokens of a choice by the engine's count. Where it counts all choices together: the choice's share when the
    whole agrees, else ``None``: the whole may happen to be what one choice has, too many of them among it."""
    if choice.num_tokens is not None:
        return choice.num_tokens
    total = answer.usage_completion_tokens
    if len(answer.choices) <= 1 or total is None:
        return total
    counts = [len(one.response_ids or ()) for one in answer.choices.values()]
    return len(choice.response_ids or ()) if sum(counts) == total else None


def check_logprobs(logprobs: Sequence[float | None]) -> Problem | None:
    """A log-probability is missing when null, NaN, infinite, positive or the engine's placeholder."""
    if not logprobs or _all_good(logprobs):
        return None
    for position, value in enumerate(logprobs):
        if value is None or not math.isfinite(value) or value > 0.0 or value == PLACEHOLDER:
            return DropReason.LOGPROB_MISSING, f"log-probability {value} at token {position}"
    return None


def _all_good(logprobs: Sequence[float | None]) -> bool:
    """Quickly whether none is missing; what this does not call good may still be."""
    try:
        # A sum with a NaN or an infinity in it is none of the finite numbers.
        return math.isfinite(sum(logprobs)) and max(logprobs) <= 0.0 and min(logprobs) > PLACEHOLDER  # type: ignore
    except TypeError:
        return False


def _says_something(choice: Choice) -> bool:
    if choice.message_json is not None:
        return message_says_something(choice.message_json)
    return any(choice.message.get(key) for key in SAYING)


def message_says_something(message_json: bytes) -> bool:
    """Whether an assistant message has text, a tool call or reasoning."""
    message = _message_decoder.decode(message_json)
    return isinstance(message, dict) and any(message.get(key) for key in SAYING)
