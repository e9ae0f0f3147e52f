"""What the engine stand-in sends: answers of 100 tokens with log-probabilities, in the shapes recorded of vLLM.

An answer is about 16.6 kB whole and 39.9 kB in 102 events as a stream; the request is 1.2 kB. Owns bytes, no process.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUM_TOKENS = 100
NUM_PROMPT_TOKENS = 240
#: The name that the engine serves under; agents say ``policy``.
ENGINE_MODEL = "engine/model-7b"
API_KEY = "sk-benchmark-0123456789abcdef"
_HEAD = {"id": "chatcmpl-b3e586bb41c27099", "created": 1795963918, "model": ENGINE_MODEL}
_WORDS = (
    "gradient",
    "trajectory",
    "reinforcement",
    "temperature",
    "distribution",
    "probability",
    "conversation",
    "engineering",
    "architecture",
    "observation",
    "instruction",
    "distillation",
    "another",
    "through",
    "between",
    "because",
    "learning",
)


@dataclass(frozen=True, slots=True)
class Wire:
    """Files for the engine stand-in and the load generator."""

    body: Path
    stream: Path
    rules: Path
    request: Path
    stream_request: Path


def write_wire(folder: Path) -> Wire:
    """Write every file under ``folder``."""
    rng = random.Random(7)
    tokens = [" " + rng.choice(_WORDS) for _ in range(NUM_TOKENS)]
    entries = [_entry(token, -rng.expovariate(2.0)) for token in tokens]
    ids = [rng.randrange(1000, 49000) for _ in range(NUM_TOKENS)]
    prompt_ids = [rng.randrange(1000, 49000) for _ in range(NUM_PROMPT_TOKENS)]
    wire = Wire(*(folder / name for name in ("body", "stream", "rules", "request", "stream-request")))
    wire.body.write_bytes(_json(_body(tokens, entries, ids, prompt_ids)))
    wire.stream.write_bytes(
        b"".join(b"data: " + event + b"\n\n" for event in _events(tokens, entries, ids, prompt_ids))
    )
    text = "".join(" " + rng.choice(_WORDS) for _ in range(88)).strip()
    for path, streamed in ((wire.request, False), (wire.stream_request, True)):
        path.write_bytes(_request(text, streamed))
    wire.rules.write_text("".join(f"{path} {needle} {file}\n" for path, needle, file in _rules(folder)))
    return wire


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}


def _usage() -> dict[str, Any]:
    total = NUM_PROMPT_TOKENS + NUM_TOKENS
    return {
        "prompt_tokens": NUM_PROMPT_TOKENS,
        "total_tokens": total,
        "completion_tokens": NUM_TOKENS,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def _body(tokens: list[str], entries: list[dict[str, Any]], ids: list[int], prompt_ids: list[int]) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": "".join(tokens),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    choice = {
        "index": 0,
        "message": message,
        "logprobs": {"content": entries},
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": ids,
        "routed_experts": None,
    }
    return {
        **_HEAD,
        "object": "chat.completion",
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": "vllm-0.32.0-c2976daf",
        "usage": _usage(),
        "prompt_logprobs": None,
        "prompt_token_ids": prompt_ids,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _events(tokens: list[str], entries: list[dict[str, Any]], ids: list[int], prompt_ids: list[int]) -> list[bytes]:
    head = {**_HEAD, "object": "chat.completion.chunk"}
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    events: list[Any] = [{**head, "choices": [first], "prompt_token_ids": prompt_ids, "prompt_text": None}]
    for number, (token, entry, token_id) in enumerate(zip(tokens, entries, ids, strict=True)):
        choice: dict[str, Any] = {"index": 0, "delta": {"content": token}, "logprobs": {"content": [entry]}}
        choice["finish_reason"] = "stop" if number + 1 == NUM_TOKENS else None
        events.append({**head, "choices": [{**choice, "token_ids": [token_id]}]})
    events.append({**head, "choices": [], "usage": _usage()})
    return [*map(_json, events), b"[DONE]"]


def _request(text: str, streamed: bool) -> bytes:
    fields = {
        "model": "policy",
        "messages": [{"role": "system", "content": "You are a helpful agent."}, {"role": "user", "content": text}],
        "temperature": 1.0,
        "max_tokens": 256,
        **({"stream": True} if streamed else {}),
    }
    body = _json(fields)
    lines = (
        "POST /v1/chat/completions HTTP/1.1",
        "host: 127.0.0.1",
        "accept: application/json",
        "content-type: application/json",
        "user-agent: OpenAI/Python 3.57.0",
        f"authorization: Bearer {API_KEY}",
        # As an agent's plugin says it to a proxy that takes nothing else for a turn.
        "x-turn-type: main",
        f"content-length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


def _rules(folder: Path) -> list[tuple[str, str, Path]]:
    """What the engine says besides chat answers: enough for a proxy that asks it how it reports log-probabilities."""
    sampled_ids = list(range(200, 212))
    choice = {
        "prompt_token_ids": [5, 6],
        "token_ids": sampled_ids,
        "logprobs": {"token_logprobs": [-1.0] * len(sampled_ids)},
    }
    scores = [None, {"6": {"logprob": -2.0}}, *({str(token): {"logprob": -2.0}} for token in sampled_ids)]
    top = {f"token_id:{token}": -0.5 * (token + 1) for token in range(5)}
    replies = [
        ("/health", "-", {}),
        ("/v1/models", "-", {"object": "list", "data": [{"id": ENGINE_MODEL, "object": "model"}]}),
        ("/v1/completions", '"prompt_logprobs"', {"choices": [{"prompt_logprobs": scores}]}),
        ("/v1/completions", '"logprobs":5', {"choices": [{"logprobs": {"top_logprobs": [top]}}]}),
        ("/v1/completions", "-", {"choices": [choice]}),
    ]
    rules = []
    for number, (path, needle, reply) in enumerate(replies):
        file = folder / f"reply-{number}"
        file.write_bytes(_json(reply))
        rules.append((path, needle, file))
    return rules
