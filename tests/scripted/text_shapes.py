"""The wire shapes of the engines' completions and of SGLang's ``/generate``, as recorded; see `shapes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .answers import Fault, Given, Sent, Spoken
from .shapes import (
    FINGERPRINT,
    NO_METRICS,
    Chunk,
    Json,
    continuous,
    counts_of,
    finish_of,
    grouped,
    ids_in,
    in_turn,
    logprob_members,
    meta_of,
    stamped,
    usage_of,
    versions_of,
    vllm_usage_chunk,
    wants_usage,
)


def completion_body(kind: str, given: Given, asked: Json) -> Json:
    """A whole completion of engine ``kind``."""
    choices = [_choice(kind, given, index, one.sent, asked, True, True) for index, one in enumerate(given.choices)]
    document: Json = {"id": given.choices[0].response_id, "object": "text_completion", "created": 1}
    document |= {"model": given.model, "choices": choices}
    if kind == "vllm":
        document |= {"service_tier": None, "system_fingerprint": FINGERPRINT}
    if given.fault is not Fault.NO_USAGE:
        document["usage"] = usage_of(kind, given)
    return document | (NO_METRICS if kind == "vllm" else {"metadata": versions_of(given.choices[0])})


def completion_chunks(kind: str, given: Given) -> list[Chunk]:
    """The chunks of a streamed completion of engine ``kind``, without ``[DONE]``."""

    def base(index: int) -> Json:
        shared = {"id": given.choices[index].response_id, "object": "text_completion", "created": 1}
        return shared | {"model": given.model}

    def all_of(index: int) -> Iterator[Chunk]:
        groups = grouped(given.choices[index])
        for place, group in enumerate(groups):
            yield _completion_chunk(kind, given, base(index), index, group, place, len(groups))

    def usage(asked: Json) -> Json | None:
        if not wants_usage(asked) or given.fault is Fault.NO_USAGE:
            return None
        return base(0) | {"choices": [], "usage": counts_of(given, given.num_tokens) | {"reasoning_tokens": 0}}

    last = vllm_usage_chunk(given, base(0)) if kind == "vllm" else usage
    return [*in_turn([list(all_of(index)) for index in range(len(given.choices))]), last]


def _completion_chunk(
    kind: str, given: Given, base: Json, index: int, group: Sequence[Sent], place: int, count: int
) -> Chunk:
    last = place == count - 1
    so_far = min((place + 1) * given.choices[index].said.together, len(given.choices[index].tokens))

    def write(asked: Json) -> Json:
        chunk: Json = base | {"choices": [_choice(kind, given, index, group, asked, place == 0, last)]}
        if kind == "sglang":
            return chunk | {"usage": None}
        if continuous(asked):
            chunk["usage"] = counts_of(given, so_far)
        return stamped(chunk, last, asked)

    return write


def _choice(kind: str, given: Given, index: int, sent: Sequence[Sent], asked: Json, first: bool, last: bool) -> Json:
    """A choice with some tokens, or all."""
    spoken, whole = given.choices[index], first and last
    logprobs = asked.get("logprobs") is not None
    choice: Json = {"index": index, "text": _text(sent), "logprobs": _logprobs(kind, sent) if logprobs else None}
    choice["finish_reason"] = finish_of(spoken) if last else None
    choice["stop_reason" if kind == "vllm" else "matched_stop"] = None
    asks = bool(asked.get("return_token_ids"))
    ids = ids_in(sent) if asks and given.fault is not Fault.NO_IDS else None
    prompt_ids = given.prompt_ids if asks and first else None
    if kind == "sglang":
        choice |= {} if ids is None else {"token_ids": ids}
        return choice | ({} if prompt_ids is None else {"prompt_token_ids": prompt_ids})
    if whole and not asked.get("stream"):
        return choice | {"token_ids": ids, "prompt_logprobs": None, "prompt_token_ids": prompt_ids} | ROUTES
    return choice | {"prompt_token_ids": prompt_ids, "token_ids": ids}


ROUTES: Json = {"routed_experts": None}


def _text(sent: Sequence[Sent]) -> str:
    return "".join(one.token.text for one in sent if one.token.shown)


def _logprobs(kind: str, sent: Sequence[Sent]) -> Json:
    entries = [(one.token.text, value) for one in sent for value in one.logprobs]
    tops: list[Any] = [{text: value} for text, value in entries] if kind == "vllm" else []
    return {
        "text_offset": [0 if kind == "vllm" else -1 for _ in entries],
        "token_logprobs": [value for _, value in entries],
        "tokens": [text for text, _ in entries],
        "top_logprobs": tops,
    }


def generate_body(given: Given, asked: Json) -> Any:
    """A whole answer of ``/generate``: an object, or a list of several."""
    pieces = [_piece(given, one, one.sent, asked, True) for one in given.choices]
    return pieces if len(pieces) > 1 else pieces[0]


def generate_chunks(given: Given) -> list[Chunk]:
    """The chunks of a streamed answer of ``/generate``, each with everything so far."""

    def all_of(index: int) -> Iterator[Chunk]:
        spoken = given.choices[index]
        ends = [*range(spoken.said.together, len(spoken.sent), spoken.said.together), len(spoken.sent)]
        for end in ends:
            yield _generate_chunk(given, index, spoken.sent[:end], end == ends[-1])

    return list(in_turn([list(all_of(index)) for index in range(len(given.choices))]))


def _generate_chunk(given: Given, index: int, sent: Sequence[Sent], last: bool) -> Chunk:
    def write(asked: Json) -> Json:
        piece = _piece(given, given.choices[index], sent, asked, last)
        return piece | {"index": index} if len(given.choices) > 1 else piece

    return write


def _piece(given: Given, spoken: Spoken, sent: Sequence[Sent], asked: Json, last: bool) -> Json:
    logprobs = bool(asked.get("return_logprob"))
    meta = meta_of(spoken, given, logprobs=False)
    if not last:
        del meta["weight_versions"]
        meta["finish_reason"] = None
        meta["completion_tokens"] = len(sent)
    if given.fault is Fault.WRONG_USAGE:
        meta["completion_tokens"] += 1
    if given.fault is Fault.NO_USAGE:
        del meta["completion_tokens"]
    if logprobs:
        meta |= logprob_members(sent, texts=False)
    ids = {} if given.fault is Fault.NO_IDS else {"output_ids": ids_in(sent)}
    piece: Json = {"text": _text(sent), **ids, "meta_info": meta}
    if asked.get("return_prompt_token_ids"):
        piece["prompt_token_ids"] = given.prompt_ids
    return piece
