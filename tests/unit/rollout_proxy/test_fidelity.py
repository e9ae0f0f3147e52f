"""A client sees through the proxy what it sees directly: recorded answers with and without what the proxy asks for."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hintloop_rollout_proxy.engines import dialect_of, reader_of
from hintloop_rollout_proxy.engines.dialect import CHAT, COMPLETIONS, GENERATE
from hintloop_rollout_proxy.events import EventRelay
from hintloop_rollout_proxy.request import read_fields

#: Differs between two recordings of one request.
VOLATILE = (
    (re.compile(rb'"id":"[^"]*"'), b'"id":""'),
    (re.compile(rb'"created":\d+'), b'"created":0'),
    (re.compile(rb'"e2e_latency":[\d.]+'), b'"e2e_latency":0'),
    (re.compile(rb'"response_sent_to_client_ts":[\d.]+'), b'"response_sent_to_client_ts":0'),
    (re.compile(rb'"system_fingerprint":"[^"]*"'), b'"system_fingerprint":""'),
    (re.compile(rb'"model":"[^"]*"'), b'"model":""'),
)
PAIRS = [
    ("vllm", CHAT, "plain_stop", "chat_stop"),
    ("vllm", CHAT, "chat_plain", "chat_length"),
    ("vllm", CHAT, "plain_tool_required", "chat_tool_required"),
    ("vllm", CHAT, "chat_stream_plain", "chat_stream_stop"),
    ("vllm", CHAT, "plain_stream_no_usage", "chat_stream_length"),
    ("vllm", CHAT, "plain_stream_length", "chat_stream_length"),
    ("vllm", CHAT, "plain_stream_stop_string", "chat_stream_stop_string"),
    ("vllm", CHAT, "plain_stream_continuous", "chat_stream_continuous_usage"),
    ("vllm", CHAT, "plain_stream_tool_required", "chat_stream_tool_required"),
    ("vllm", CHAT, "plain_stream_tool_named", "chat_stream_tool_named"),
    ("sglang", CHAT, "plain_stop", "chat_stop"),
    ("sglang", CHAT, "chat_plain", "chat_length"),
    ("sglang", CHAT, "plain_tool_named", "chat_tool_named"),
    ("sglang", CHAT, "chat_stream_plain", "chat_stream_stop"),
    ("sglang", CHAT, "plain_stream_no_usage", "chat_stream_no_usage"),
    ("sglang", CHAT, "plain_stream_stop_string", "chat_stream_stop_string"),
    ("sglang", CHAT, "plain_stream_tool_named", "chat_stream_tool_named"),
    ("sglang", GENERATE, "gen_text_plain", "gen_text"),
    ("sglang", GENERATE, "gen_ids_plain", "gen_ids"),
    ("sglang", GENERATE, "gen_stream_plain", "gen_stream"),
    ("sglang", GENERATE, "gen_stream_stop_plain", "gen_stream_stop"),
    ("sglang", GENERATE, "gen_n2_plain", "gen_n2"),
    *(
        (engine, COMPLETIONS, f"{name}_plain", name)
        for engine in ("vllm", "sglang")
        for name in (
            "completion",
            "completion_ids",
            "completion_stream",
            "completion_stream_ids",
            "completion_stop_string",
            "completion_stream_stop_string",
        )
    ),
    ("vllm", COMPLETIONS, "completion_stream_no_usage_plain", "completion_stream"),
    ("sglang", COMPLETIONS, "completion_stream_no_usage_plain", "completion_stream"),
]


def body_of(recorded: dict[str, Any]) -> bytes:
    body = recorded["body"]
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


def settled(data: bytes) -> bytes:
    for pattern, constant in VOLATILE:
        data = pattern.sub(constant, data)
    # The engine names tool calls at random.
    return re.sub(rb"(chatcmpl-tool-|call_)[0-9a-f]+", rb"\1", data)


def seen_of(engine: str, api: str, asked: dict[str, Any], answer: bytes, streamed: bool) -> bytes:
    """What a client sees of an answer when it asked what ``asked`` says."""
    fields = read_fields(json.dumps(asked).encode())
    assert fields is not None
    extension = dialect_of(engine).extend(api, fields, {})
    assert extension is not None
    reader = reader_of(api, extension.hidden, "policy", "fingerprint" if engine == "vllm" else None)
    if not streamed:
        return reader.body(answer)
    relay = EventRelay(reader)
    return relay.feed(answer) + relay.rest()


@pytest.mark.parametrize(("engine", "api", "plain", "ours"), PAIRS)
def test_what_only_we_asked_for_leaves_no_trace(engine: str, api: str, plain: str, ours: str, wire: Any) -> None:
    direct, asked_more = wire(engine, plain), wire(engine, ours)
    streamed = isinstance(direct["body"], str)
    seen = seen_of(engine, api, direct["request"]["body"], body_of(asked_more), streamed)
    assert settled(seen) == settled(body_of(direct))


@pytest.mark.parametrize(
    ("engine", "api", "name"),
    [
        ("vllm", CHAT, "chat_stop"),
        ("vllm", CHAT, "chat_n2"),
        ("vllm", CHAT, "chat_stream_tool_required"),
        ("vllm", CHAT, "chat_stream_n2"),
        ("vllm", COMPLETIONS, "completion_n2"),
        ("vllm", COMPLETIONS, "completion_stream"),
        ("sglang", CHAT, "chat_stop"),
        ("sglang", CHAT, "chat_top_logprobs"),
        ("sglang", CHAT, "chat_stream_body_fields"),
        ("sglang", COMPLETIONS, "completion_stream_n2"),
        ("sglang", GENERATE, "gen_stream"),
        ("sglang", GENERATE, "gen_n2"),
    ],
)
def test_who_asks_for_everything_gets_it(engine: str, api: str, name: str, wire: Any) -> None:
    recorded = wire(engine, name)
    answer = body_of(recorded).replace(b'"model":"smollm2"', b'"model":"policy"')
    seen = seen_of(engine, api, recorded["request"]["body"], answer, isinstance(recorded["body"], str))
    assert seen == answer


@pytest.mark.parametrize(
    ("engine", "api", "name"),
    [
        ("vllm", CHAT, "chat_n2"),
        ("vllm", CHAT, "chat_stream_n2"),
        ("vllm", COMPLETIONS, "completion_n2"),
        ("vllm", COMPLETIONS, "completion_stream_n2"),
        ("sglang", CHAT, "chat_n2"),
        ("sglang", CHAT, "chat_stream_n2"),
        ("sglang", COMPLETIONS, "completion_n2"),
        ("sglang", COMPLETIONS, "completion_stream_n2"),
        ("sglang", GENERATE, "gen_n2"),
        ("sglang", GENERATE, "gen_stream_n2"),
    ],
)
def test_nothing_of_several_choices_shows(engine: str, api: str, name: str, wire: Any) -> None:
    """Two recordings of sampled choices differ; what is hidden of them does not show all the same."""
    recorded = wire(engine, name)
    asked = {
        key: value for key, value in recorded["request"]["body"].items() if "return" not in key and "logprob" not in key
    }
    streamed = isinstance(recorded["body"], str)
    seen = seen_of(engine, api, asked, body_of(recorded), streamed)
    names = rb"(?:prompt_|response_)?token_ids|(?:output_token_|input_token_)?logprobs|sglext"
    assert not re.findall(rb'"(?:' + names + rb')":[^n]', seen)
    assert seen.count(b'"finish_reason":"length"' if api != GENERATE else b'"type":"length"') == 2


def test_one_half_of_sglext_is_asked_for(wire: Any) -> None:
    recorded = wire("sglang", "chat_stream_stop")
    asked = {"stream": True, "logprobs": True, "return_input_ids_in_sglext": True}
    seen = seen_of("sglang", CHAT, asked, body_of(recorded), True)
    assert b'"sglext":{"input_ids":[1,' in seen and b"output_ids" not in seen
