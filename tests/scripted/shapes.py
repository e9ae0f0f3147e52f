"""The wire shapes of the engines' chat completions, as recorded in ``tests/fixtures/wire``: bodies and chunks.

What is sent depends on what was asked, so a chunk is a function of that: it gives ``None`` where an engine would send
nothing. Asking for the same answer in another way shows what another client would have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .answers import Fault, Given, Sent, Spoken

Json = dict[str, Any]
Chunk = Callable[[Json], Json | None]

FINGERPRINT = "vllm-0.32.0-758c5706"
NO_METRICS: Json = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


def body(kind: str, given: Given, asked: Json) -> Json:
    """A whole answer of engine ``kind``."""
    return _vllm_body(given, asked) if kind == "vllm" else _sglang_body(given, asked)


def chunks(kind: str, given: Given) -> list[Chunk]:
    """The chunks of a streamed answer of engine ``kind``, without ``[DONE]``."""
    return _vllm_chunks(given) if kind == "vllm" else _sglang_chunks(given)


def wants_usage(asked: Json) -> bool:
    """Whether a stream ends with its usage."""
    return bool((asked.get("stream_options") or {}).get("include_usage"))


def usage_of(kind: str, given: Given, num_tokens: int | None = None) -> Json:
    """``usage`` in a whole answer, of ``num_tokens`` so far."""
    num = given.num_tokens if num_tokens is None else num_tokens
    usage: Json = {"prompt_tokens": len(given.prompt_ids), "total_tokens": len(given.prompt_ids) + num}
    usage |= {"completion_tokens": num, "prompt_tokens_details": None}
    return usage | ({} if kind == "vllm" else {"reasoning_tokens": 0}) | {"completion_tokens_details": None}


def grouped(spoken: Spoken) -> list[tuple[Sent, ...]]:
    """The tokens as they travel together."""
    size = spoken.said.together
    return [spoken.sent[start : start + size] for start in range(0, len(spoken.sent), size)]


def in_turn(lists: Sequence[Sequence[Chunk]]) -> Iterator[Chunk]:
    """First of each, second of each, …"""
    for place in range(max(map(len, lists))):
        yield from (one[place] for one in lists if place < len(one))


def ids_in(sent: Sequence[Sent]) -> list[int | None]:
    """Token ids as they are sent."""
    return [number for one in sent for number in one.ids]


def finish_of(spoken: Spoken, forced: bool = False) -> str:
    """The reason that the engine gives."""
    said = spoken.said
    if said.fault is Fault.GIVEN_UP:
        return "abort"
    return "tool_calls" if said.calls and said.finish == "stop" and not forced else said.finish


def _entries(sent: Sequence[Sent], kind: str) -> list[Json]:
    found = []
    for one in sent:
        text = one.token.text
        data = list(text.encode("utf-8", "replace"))
        for value in one.logprobs:
            said: Json = {"token": text, "logprob": value, "bytes": data}
            found.append(said | {"top_logprobs": []} if kind == "vllm" else _sglang_entry(text, data, value))
    return found


def _sglang_entry(text: str, data: list[int], value: float | None) -> Json:
    return {"token": text, "bytes": data, "logprob": value, "top_logprobs": []}


def _calls(spoken: Spoken) -> list[Json]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in spoken.said.calls
    ]


def _vllm_body(given: Given, asked: Json) -> Json:
    with_ids, num_ids = asked.get("return_token_ids"), given.fault is not Fault.NO_IDS
    choices = []
    for index, one in enumerate(given.choices):
        said = one.said
        message: Json = {"role": "assistant", "content": said.content or (None if said.calls else "")}
        message |= {"refusal": None, "annotations": None, "audio": None, "function_call": None}
        if said.calls:
            message["tool_calls"] = _calls(one)
        message["reasoning"] = said.reasoning or None
        choice: Json = {"index": index, "message": message}
        choice["logprobs"] = {"content": _entries(one.sent, "vllm")} if asked.get("logprobs") else None
        choice |= {"finish_reason": finish_of(one), "stop_reason": None}
        choice["token_ids"] = ids_in(one.sent) if with_ids and num_ids else None
        choices.append(choice | {"routed_experts": None})
    document = {"id": given.choices[0].response_id, "object": "chat.completion", "created": 1, "model": given.model}
    document |= {"choices": choices, "service_tier": None, "system_fingerprint": FINGERPRINT}
    if given.fault is not Fault.NO_USAGE:
        document["usage"] = usage_of("vllm", given)
    document |= {"prompt_logprobs": None, "prompt_token_ids": given.prompt_ids if with_ids else None}
    return document | {"prompt_text": None} | NO_METRICS


def _sglang_body(given: Given, asked: Json) -> Json:
    choices = []
    for index, one in enumerate(given.choices):
        said = one.said
        message: Json = {"role": "assistant", "content": said.content or None}
        message["reasoning_content"] = said.reasoning or None
        if said.calls:
            message["tool_calls"] = [{"index": i, **call} for i, call in enumerate(_calls(one))]
        choice: Json = {"index": index, "message": message}
        entries = _entries(one.sent, "sglang")
        choice["logprobs"] = {"content": entries} if asked.get("logprobs") else None
        choice |= {"finish_reason": finish_of(one), "matched_stop": None}
        if asked.get("return_prompt_token_ids") or asked.get("return_token_ids"):
            choice["prompt_token_ids"] = given.prompt_ids
        if asked.get("return_token_ids") and given.fault is not Fault.NO_IDS:
            choice["response_token_ids"] = ids_in(one.sent)
        if asked.get("return_meta_info"):
            choice["meta_info"] = meta_of(one, given, logprobs=True)
        choices.append(choice)
    document = {"id": given.choices[0].response_id, "object": "chat.completion", "created": 1, "model": given.model}
    document["choices"] = choices
    if given.fault is not Fault.NO_USAGE:
        document["usage"] = usage_of("sglang", given)
    return document | {"metadata": versions_of(given.choices[0])}


def versions_of(spoken: Spoken) -> Json:
    """Which weights made it."""
    spans = [{"version": "1", "start": 0, "end": len(spoken.tokens)}]
    return {"weight_version": "1", "weight_versions": spans}


def meta_of(spoken: Spoken, given: Given, logprobs: bool) -> Json:
    """``meta_info`` of a finished answer of SGLang."""
    finish = finish_of(spoken)
    meta: Json = {"id": spoken.response_id, "finish_reason": {"type": finish, "length": len(spoken.tokens)}}
    meta |= {"prompt_tokens": len(given.prompt_ids), "weight_version": "1", "num_retractions": 0}
    if logprobs:
        meta |= logprob_members(spoken.sent, texts=True)
    meta |= {"reasoning_tokens": 0, "completion_tokens": len(spoken.tokens), "cached_tokens": 0}
    return meta | {"weight_versions": versions_of(spoken)["weight_versions"], "dp_rank": None}


def logprob_members(sent: Sequence[Sent], texts: bool) -> Json:
    """What ``return_logprob`` adds to ``meta_info``."""
    outputs = [[value, one.token.id, one.token.text if texts else None] for one in sent for value in one.logprobs]
    return {
        "input_token_logprobs": [],
        "output_token_logprobs": outputs,
        "output_token_logprobs_length": len(outputs),
    }


def _delta(kind: str, spoken: Spoken, group: Sequence[Sent], told: dict[int, int]) -> Json:
    """What some tokens show. ``told``: after which token a parser tells which call, once it has read the whole."""
    delta: Json = {}
    reasoning = "reasoning" if kind == "vllm" else "reasoning_content"
    for one in group:
        key = {"content": "content", "reasoning": reasoning}.get(one.token.shown)
        if key:
            delta[key] = delta.get(key, "") + one.token.text
    calls = _calls(spoken)
    told_now = [told[id(one)] for one in group if id(one) in told]
    if told_now:
        delta["tool_calls"] = [{"index": index, **calls[index]} for index in told_now]
    return delta


def _told(spoken: Spoken) -> dict[int, int]:
    """By the token that ends it, which call a parser has then read."""
    told: dict[int, int] = {}
    text = ""
    ends = []
    for call_end in spoken.said.calls:
        text += f'<tool_call>\n{{"name": "{call_end.name}", "arguments": {call_end.arguments}}}\n</tool_call>'
        ends.append(len(text))
    seen = 0
    for one in spoken.sent:
        if one.token.shown != "call":
            continue
        seen += len(one.token.text)
        if ends and seen >= ends[len(told)]:
            told[id(one)] = len(told)
    return told


def _vllm_chunks(given: Given) -> list[Chunk]:
    base = {"id": given.choices[0].response_id, "object": "chat.completion.chunk", "created": 1, "model": given.model}

    def first(index: int) -> Chunk:
        def write(asked: Json) -> Json:
            choice: Json = {"index": index, "delta": {"role": "assistant", "content": ""}}
            chunk: Json = base | {"choices": [choice | {"logprobs": None, "finish_reason": None}]}
            if continuous(asked):
                chunk["usage"] = _continuous_usage(given, 0)
            return chunk | {
                "prompt_token_ids": given.prompt_ids if asked.get("return_token_ids") else None,
                "prompt_text": None,
            }

        return write

    def more(index: int) -> Iterator[Chunk]:
        spoken = given.choices[index]
        told, groups = _told(spoken), grouped(spoken)
        for place, group in enumerate(groups):
            yield _vllm_chunk(given, base, index, group, _delta("vllm", spoken, group, told), place, len(groups))

    indices = range(len(given.choices))
    found = [first(index) for index in indices]
    found += in_turn([list(more(index)) for index in indices])
    return [*found, vllm_usage_chunk(given, base)]


def _vllm_chunk(
    given: Given, base: Json, index: int, group: Sequence[Sent], delta: Json, place: int, count: int
) -> Chunk:
    spoken, last = given.choices[index], place == count - 1
    so_far = min((place + 1) * spoken.said.together, len(spoken.tokens))

    def write(asked: Json) -> Json | None:
        ids, logprobs = asked.get("return_token_ids"), asked.get("logprobs")
        if not delta and not last and not ids and not logprobs:
            return None
        choice: Json = {"index": index, "delta": delta}
        choice["logprobs"] = {"content": _entries(group, "vllm")} if logprobs else None
        choice["finish_reason"] = finish_of(spoken) if last else None
        if last:
            choice["stop_reason"] = None
        choice["token_ids"] = ids_in(group) if ids and given.fault is not Fault.NO_IDS else None
        chunk: Json = base | {"choices": [choice]}
        if continuous(asked):
            chunk["usage"] = _continuous_usage(given, so_far)
        return stamped(chunk, last, asked)

    return write


def continuous(asked: Json) -> bool:
    """Whether every chunk of vLLM's counts."""
    return wants_usage(asked) and bool(asked["stream_options"].get("continuous_usage_stats"))


def _continuous_usage(given: Given, so_far: int) -> Json:
    counts = counts_of(given, so_far)
    return counts | {"completion_tokens_details": None}


def counts_of(given: Given, num_tokens: int) -> Json:
    """The counts of a usage."""
    num_prompt = len(given.prompt_ids)
    return {"prompt_tokens": num_prompt, "total_tokens": num_prompt + num_tokens, "completion_tokens": num_tokens}


def stamped(chunk: Json, last: bool, asked: Json) -> Json:
    """vLLM writes its fingerprint into the last chunk of each choice unless one with the usage follows."""
    return chunk | {"system_fingerprint": FINGERPRINT} if last and not wants_usage(asked) else chunk


def vllm_usage_chunk(given: Given, base: Json) -> Chunk:
    """The chunk with nothing but usage."""

    def write(asked: Json) -> Json | None:
        if not wants_usage(asked) or given.fault is Fault.NO_USAGE:
            return None
        usage = counts_of(given, given.num_tokens)
        return base | {"choices": [], "usage": usage, "system_fingerprint": FINGERPRINT}

    return write


def _sglang_chunks(given: Given) -> list[Chunk]:
    indices = range(len(given.choices))
    found = list(in_turn([_sglang_choice(given, index) for index in indices]))
    for index, spoken in enumerate(given.choices):
        found.append(_written(_sglang_chunk(given, index, {}, None, finish_of(spoken))))
    return [*found, _sglext(given), _sglang_usage(given)]


def _written(chunk: Json) -> Chunk:
    return lambda asked: chunk


def _sglang_base(given: Given, index: int) -> Json:
    shared = {"id": given.choices[index].response_id, "object": "chat.completion.chunk", "created": 1}
    return shared | {"model": given.model}


def _sglang_chunk(given: Given, index: int, delta: Json, logprobs: Any, finish: str | None) -> Json:
    choice = {"index": index, "delta": {"reasoning_content": None} | delta, "logprobs": logprobs}
    return _sglang_base(given, index) | {"choices": [choice | {"finish_reason": finish, "matched_stop": None}]}


def _sglang_choice(given: Given, index: int) -> list[Chunk]:
    spoken = given.choices[index]
    told = _told(spoken)

    def more(group: Sequence[Sent]) -> Chunk:
        delta = _delta("sglang", spoken, group, told)

        def write(asked: Json) -> Json | None:
            entries = _entries(group, "sglang") if asked.get("logprobs") else []
            if not delta and not entries:
                return None
            return _sglang_chunk(given, index, delta, {"content": entries} if entries else None, None)

        return write

    start = _written(_sglang_chunk(given, index, {"role": "assistant", "content": ""}, None, None))
    return [start, *map(more, grouped(spoken))]


def _sglext(given: Given) -> Chunk:
    def write(asked: Json) -> Json | None:
        sglext: Json = {}
        if asked.get("return_input_ids_in_sglext"):
            sglext["input_ids"] = given.prompt_ids
        if asked.get("return_output_ids_in_sglext") and given.fault is not Fault.NO_IDS:
            sglext["output_ids"] = [ids_in(spoken.sent) for spoken in given.choices]
        return _sglang_base(given, 0) | {"choices": [], "usage": None, "sglext": sglext} if sglext else None

    return write


def _sglang_usage(given: Given) -> Chunk:
    def write(asked: Json) -> Json | None:
        if not wants_usage(asked) or given.fault is Fault.NO_USAGE:
            return None
        return _sglang_base(given, 0) | {"choices": [], "usage": usage_of("sglang", given)}

    return write
