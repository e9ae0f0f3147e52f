"""Reading requests: session keys, sampling, constraints."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hintloop_rollout_proxy.errors import BadRequestError
from hintloop_rollout_proxy.request import check_numbers, read_fields, read_sampling, session_key, untrainable


def fields_of(body: dict[str, Any]) -> Any:
    return read_fields(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({b"x-session-id": b"a", b"session-id": b"b"}, {"user": "u"}, "header:x-session-id:a"),
        ({b"session-id": b"root", b"thread-id": b"child"}, {}, "header:session-id:root/child"),
        ({b"x-session-affinity": b"c"}, {}, "header:x-session-affinity:c"),
        ({}, {"metadata": {"session_id": "m"}, "user": "u"}, "body:metadata.session_id:m"),
        ({}, {"session_id": "s", "user": "u"}, "body:session_id:s"),
        ({}, {"user": "u", "prompt_cache_key": "p"}, "body:user:u"),
        ({}, {"prompt_cache_key": "p"}, "body:prompt_cache_key:p"),
        ({}, {"user": "", "metadata": {"session_id": 3}}, None),
        ({}, {}, None),
    ],
)
def test_session_key(headers: dict[bytes, bytes], body: dict[str, Any], expected: str | None) -> None:
    assert session_key(fields_of(body), headers) == expected


@pytest.mark.parametrize(
    ("body", "constrained"),
    [
        ({}, False),
        ({"tool_choice": "auto", "response_format": {"type": "text"}, "presence_penalty": 0}, False),
        ({"logit_bias": {}, "repetition_penalty": 1.0, "frequency_penalty": None}, False),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, True),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, True),
        ({"logit_bias": {"5": 1}}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"guided_regex": "a+"}, True),
        ({"structured_outputs": {"json": {}}}, True),
    ],
)
def test_constrained(body: dict[str, Any], constrained: bool) -> None:
    assert read_sampling(fields_of(body)).constrained is constrained


def test_sampling_reads_what_is_there() -> None:
    sampling = read_sampling(
        fields_of({"temperature": 0, "top_p": 0.9, "top_k": -1, "min_p": 0.05, "max_completion_tokens": 9, "seed": 3})
    )
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 0.9, None)
    assert (sampling.min_p, sampling.max_tokens, sampling.seed) == (0.05, 9, 3)
    assert read_sampling(fields_of({})).temperature == 1.0


def test_text_in_any_form_is_trainable() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}, {"role": "tool"}]
    assert untrainable(fields_of({"messages": messages, "n": 1})) is None
    assert untrainable(fields_of({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}))


def test_no_object_has_no_fields() -> None:
    assert read_fields(b"[]") is None
    assert read_fields(b"{") is None


@pytest.mark.parametrize(
    ("member", "text"),
    [
        ("seed", "1" + "0" * 30),
        ("top_k", "18446744073709551616"),
        ("max_tokens", "18446744073709551616"),
        ("max_completion_tokens", "-9223372036854775809"),
        ("top_k", "2.5"),
        ("temperature", '"0.7"'),
        ("top_p", "1e999"),
        ("temperature", "true"),
        ("n", "1" + "0" * 30),
        ("n", '"2"'),
    ],
)
def test_numbers_that_cannot_be_recorded_are_not_trained(member: str, text: str) -> None:
    fields = read_fields(f'{{"messages":[],"{member}":{text}}}'.encode())
    assert fields is not None
    reason = untrainable(fields)
    assert reason is not None and reason.startswith(f"{member} = ")
    msgspec.msgpack.encode(read_sampling(fields))


def test_json_that_nests_too_deep_is_refused() -> None:
    with pytest.raises(BadRequestError, match="too deep"):
        read_fields(b'{"messages":' + b"[" * 3000 + b"]" * 3000 + b"}")


@pytest.mark.parametrize("member", ["temperature", "top_k", "seed", "presence_penalty"])
def test_numbers_past_any_double_are_refused(member: str) -> None:
    fields = read_fields(f'{{"{member}":1{"0" * 400}}}'.encode())
    assert fields is not None
    with pytest.raises(BadRequestError, match=f"{member} has 401 digits"):
        check_numbers(fields)
