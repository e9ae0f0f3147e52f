"""The wire shapes of the engines' chat completions, as recorded in ``tests/fixtures/wire``: bodies and streams.

A stream is a list of events; a fault is set into the finished answer, where the way from an engine would set it.
"""

from __future__ import annotations

import json
from typing import Any

from .answers import Fault, Given, Token

Json = dict[str, Any]


def body(kind: str, given: Given) -> bytes:
    """A whole answer of engine ``kind``."""
    document = _vllm_body(given) if kind == "vllm" else _sglang_body(given)
    data = _dump(document)
    return data[: len(data) * 2 // 3] if given.said.fault is Fault.TRUNCATED else data


def events(kind: str, given: Given) -> list[bytes]:
    """The server-sent events of engine ``kind``, the last of them ``[DONE]``."""
    chunks = _vllm_chunks(given) if kind == "vllm" else _sglang_chunks(given)
    found = [b"data: " + _dump(chunk) + b"\n\n" for chunk in chunks]
    middle = 1 + len(given.tokens) // 2
    match given.said.fault:
        case Fault.TRUNCATED:
            return found[:middle]
        case Fault.DUPLICATED_CHUNK:
            return [*found[:middle], found[middle], *found[middle:], b"data: [DONE]\n\n"]
        case Fault.GARBAGE_CHUNK:
            return [*found[:middle], b'data: {"id": "x", "choices": [{\n\n', *found[middle:], b"data: [DONE]\n\n"]
    return [*found, b"data: [DONE]\n\n"]


def _dump(document: Json) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _sent_tokens(given: Given) -> list[Token]:
    """The tokens whose ids are sent: one too many or too few under a fault."""
    match given.said.fault:
        case Fault.EXTRA_TOKEN:
            return [*given.tokens, given.tokens[-1]]
        case Fault.LOST_TOKEN:
            return given.tokens[:-1]
    return given.tokens


def _entry(kind: str, token: Token) -> Json:
    shared = {"token": token.text, "logprob": token.logprob, "bytes": list(token.text.encode("utf-8", "replace"))}
    return shared | {"top_logprobs": []}


def _entries(kind: str, given: Given) -> list[Json]:
    found = [_entry(kind, token) for token in given.tokens]
    middle = len(found) // 2
    match given.said.fault:
        case Fault.LOGPROB_NULL:
            found[middle]["logprob"] = None
        case Fault.LOGPROB_PLACEHOLDER:
            found[middle]["logprob"] = -9999.0
        case Fault.LOGPROB_LEFT_OUT:
            del found[middle]
    return found


def _usage(kind: str, given: Given) -> Json:
    num = len(given.tokens) + (given.said.fault is Fault.WRONG_USAGE)
    usage: Json = {"prompt_tokens": len(given.prompt_ids), "total_tokens": len(given.prompt_ids) + num}
    usage |= {"completion_tokens": num, "prompt_tokens_details": None}
    return usage | ({"completion_tokens_details": None} if kind == "vllm" else {"reasoning_tokens": 0})


def _calls(given: Given) -> list[Json]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in given.said.calls
    ]


def _finish(given: Given) -> str:
    return "tool_calls" if given.said.calls and given.said.finish == "stop" else given.said.finish


def _vllm_body(given: Given) -> Json:
    asked, said = given.asked, given.said
    with_ids = asked.get("return_token_ids") and said.fault is not Fault.NO_IDS
    message: Json = {"role": "assistant", "content": said.content or (None if said.calls else "")}
    message |= {"refusal": None, "annotations": None, "audio": None, "function_call": None}
    message["reasoning"] = said.reasoning or None
    if said.calls:
        message["tool_calls"] = _calls(given)
    choice: Json = {"index": 0, "message": message, "finish_reason": _finish(given), "stop_reason": None}
    choice["logprobs"] = {"content": _entries("vllm", given)} if asked.get("logprobs") else None
    choice["token_ids"] = [token.id for token in _sent_tokens(given)] if with_ids else None
    document = {"id": given.response_id, "object": "chat.completion", "created": 1, "model": asked["model"]}
    document |= {"choices": [choice], "service_tier": None, "prompt_logprobs": None, "prompt_text": None}
    document["prompt_token_ids"] = given.prompt_ids if asked.get("return_token_ids") else None
    return document | ({} if said.fault is Fault.NO_USAGE else {"usage": _usage("vllm", given)})


def _sglang_body(given: Given) -> Json:
    asked, said = given.asked, given.said
    message: Json = {"role": "assistant", "content": said.content or None, "reasoning_content": said.reasoning or None}
    message["tool_calls"] = [{**call, "index": i} for i, call in enumerate(_calls(given))] or None
    choice: Json = {"index": 0, "message": message, "finish_reason": _finish(given), "matched_stop": None}
    choice["logprobs"] = {"content": _entries("sglang", given)} if asked.get("logprobs") else None
    if asked.get("return_prompt_token_ids"):
        choice["prompt_token_ids"] = given.prompt_ids
    if asked.get("return_token_ids") and said.fault is not Fault.NO_IDS:
        choice["response_token_ids"] = [token.id for token in _sent_tokens(given)]
    versions = [{"version": "1", "start": 0, "end": len(given.tokens)}]
    if asked.get("return_meta_info"):
        outputs = [[entry["logprob"], 0, entry["token"]] for entry in _entries("sglang", given)]
        for output, token in zip(outputs, given.tokens, strict=False):
            output[1] = token.id
        choice["meta_info"] = {"weight_version": "1", "weight_versions": versions, "output_token_logprobs": outputs}
    document = {"id": given.response_id, "object": "chat.completion", "created": 1, "model": asked["model"]}
    document |= {"choices": [choice], "metadata": {"weight_version": "1", "weight_versions": versions}}
    return document | ({} if said.fault is Fault.NO_USAGE else {"usage": _usage("sglang", given)})


def _deltas(kind: str, given: Given) -> list[Json]:
    """What each token shows. A tool parser shows a call's name and arguments once it has read the whole of it."""
    reasoning = "reasoning" if kind == "vllm" else "reasoning_content"
    found: list[Json] = []
    for token in given.tokens:
        key = {"content": "content", "reasoning": reasoning}.get(token.shown)
        found.append({key: token.text} if key else {})
    ends = _call_ends(given)
    for index, (call, end) in enumerate(zip(_calls(given), ends, strict=True)):
        found[end] = {"tool_calls": [{"index": index, **call}]}
    return found


def _call_ends(given: Given) -> list[int]:
    places = [i for i, token in enumerate(given.tokens) if token.shown == "call"]
    ends, text, begun = [], "", 0
    for i in places:
        text += given.tokens[i].text
        if text.count("</tool_call>") > begun:
            begun += 1
            ends.append(i)
    return ends


def _vllm_chunks(given: Given) -> list[Json]:
    asked, fault = given.asked, given.said.fault
    base = {"id": given.response_id, "object": "chat.completion.chunk", "created": 1, "model": asked["model"]}
    ids = asked.get("return_token_ids")
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    chunks = [base | {"choices": [first], "prompt_token_ids": given.prompt_ids if ids else None, "prompt_text": None}]
    entries, deltas = _entries("vllm", given), _deltas("vllm", given)
    for i, token in enumerate(given.tokens):
        entry = entries[i : i + 1] if asked.get("logprobs") else []
        choice: Json = {"index": 0, "delta": deltas[i], "logprobs": {"content": entry} if entry else None}
        last = i == len(given.tokens) - 1
        choice |= (
            {"finish_reason": _finish(given)} | ({"stop_reason": None} if last else {})
            if last
            else {"finish_reason": None}
        )
        sent = [token.id]
        if last and fault is Fault.EXTRA_TOKEN:
            sent.append(token.id)
        choice["token_ids"] = (None if fault is Fault.NO_IDS else sent) if ids else None
        if last and fault is Fault.LOST_TOKEN and ids:
            choice["token_ids"] = []
        chunks.append(base | {"choices": [choice]})
    if (asked.get("stream_options") or {}).get("include_usage") and fault is not Fault.NO_USAGE:
        chunks.append(base | {"choices": [], "usage": _usage("vllm", given)})
    return chunks


def _sglang_chunks(given: Given) -> list[Json]:
    asked, fault = given.asked, given.said.fault
    base = {"id": given.response_id, "object": "chat.completion.chunk", "created": 1, "model": asked["model"]}
    empty = {"reasoning_content": None}

    def chunk(delta: Json, logprobs: Any, finish: str | None) -> Json:
        choice = {"index": 0, "delta": empty | delta, "logprobs": logprobs, "finish_reason": finish}
        return base | {"choices": [choice | {"matched_stop": None}]}

    chunks = [chunk({"role": "assistant", "content": ""}, None, None)]
    entries, deltas = _entries("sglang", given), _deltas("sglang", given)
    for i, delta in enumerate(deltas):
        entry = entries[i : i + 1] if asked.get("logprobs") else []
        chunks.append(chunk(delta, {"content": entry} if entry else None, None))
    chunks.append(chunk({}, None, _finish(given)))
    sglext: Json = {}
    if asked.get("return_input_ids_in_sglext"):
        sglext["input_ids"] = given.prompt_ids
    if asked.get("return_output_ids_in_sglext") and fault is not Fault.NO_IDS:
        sglext["output_ids"] = [[token.id for token in _sent_tokens(given)]]
    if sglext:
        chunks.append(base | {"choices": [], "usage": None, "sglext": sglext})
    if (asked.get("stream_options") or {}).get("include_usage") and fault is not Fault.NO_USAGE:
        chunks.append(base | {"choices": [], "usage": _usage("sglang", given)})
    return chunks
