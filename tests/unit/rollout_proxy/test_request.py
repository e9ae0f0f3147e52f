"""Reading requests: session keys, sampling, constraints."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hintloop_rollout_proxy.engines.dialect import CHAT, COMPLETIONS, GENERATE
from hintloop_rollout_proxy.errors import BadRequestError
from hintloop_rollout_proxy.request import check_numbers, fill_defaults, read_fields, read_request, session_key


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
    assert read_request(CHAT, fields_of(body)).sampling.constrained is constrained


def test_sampling_reads_what_is_there() -> None:
    asked = {"temperature": 0, "top_p": 0.9, "top_k": -1, "min_p": 0.05, "max_completion_tokens": 9, "seed": 3}
    sampling = read_request(CHAT, fields_of(asked)).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 0.9, None)
    assert (sampling.min_p, sampling.max_tokens, sampling.seed) == (0.05, 9, 3)
    assert read_request(CHAT, fields_of({})).sampling.temperature == 1.0


def test_text_in_any_form_is_trainable() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}, {"role": "tool"}]
    assert read_request(CHAT, fields_of({"messages": messages, "n": 1})).untrainable is None
    audio = [{"role": "user", "content": [{"type": "input_audio"}]}]
    assert read_request(CHAT, fields_of({"messages": audio})).untrainable is not None


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
    reading = read_request(CHAT, fields)
    assert reading.untrainable is not None and reading.untrainable.startswith(f"{member} = ")
    msgspec.msgpack.encode(reading.sampling)


@pytest.mark.parametrize(
    ("api", "body", "word"),
    [
        (COMPLETIONS, {"prompt": "a"}, None),
        (COMPLETIONS, {"prompt": [1, 2], "n": 2, "best_of": 2}, None),
        (COMPLETIONS, {"prompt": ["a"]}, "no single prompt"),
        (COMPLETIONS, {"prompt": [[1]]}, "no single prompt"),
        (COMPLETIONS, {}, "no single prompt"),
        (COMPLETIONS, {"prompt": "a", "best_of": 3}, "best_of = 3"),
        (COMPLETIONS, {"prompt": "a", "echo": True}, "echo"),
        (COMPLETIONS, {"prompt": "a", "use_beam_search": True}, "beam"),
        (GENERATE, {"text": "a"}, None),
        (GENERATE, {"input_ids": [1]}, None),
        (GENERATE, {"text": ["a"]}, "no single prompt"),
        (GENERATE, {"input_ids": [[1]]}, "no single prompt"),
        (GENERATE, {"text": "a", "image_data": "x"}, "image_data"),
        (GENERATE, {"text": "a", "sampling_params": [{}]}, "list"),
        (GENERATE, {"text": "a", "sampling_params": {"temperature": "hot"}}, "temperature"),
    ],
)
def test_what_of_the_other_apis_is_trained(api: str, body: dict[str, Any], word: str | None) -> None:
    untrainable = read_request(api, fields_of(body)).untrainable
    assert untrainable is None if word is None else untrainable is not None and word in untrainable


def test_choices_are_counted() -> None:
    assert read_request(CHAT, fields_of({"n": 3})).num_choices == 3
    assert read_request(GENERATE, fields_of({"text": "a", "sampling_params": {"n": 2}})).num_choices == 2


def test_sampling_of_generate() -> None:
    params = {"temperature": 0.5, "max_new_tokens": 7, "sampling_seed": 2, "regex": "a+"}
    reading = read_request(GENERATE, fields_of({"text": "a", "sampling_params": params}))
    sampling = reading.sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.seed, sampling.constrained) == (0.5, 7, 2, True)
    assert reading.leaves_sampling_out


def test_defaults_are_filled_where_each_api_has_them() -> None:
    fields = fields_of({"text": "a", "sampling_params": {"top_p": 0.5}})
    fill_defaults(GENERATE, fields, 0.7, 0.9, 5)
    assert json.loads(bytes(fields["sampling_params"])) == {"temperature": 0.7, "top_p": 0.5, "max_new_tokens": 5}
    fields = fields_of({"prompt": "a", "max_tokens": 3})
    fill_defaults(COMPLETIONS, fields, 0.7, 0.9, 5)
    assert {name: json.loads(bytes(raw)) for name, raw in fields.items()} == {
        "prompt": "a",
        "max_tokens": 3,
        "temperature": 0.7,
        "top_p": 0.9,
    }


def test_json_that_nests_too_deep_is_refused() -> None:
    with pytest.raises(BadRequestError, match="too deep"):
        read_fields(b'{"messages":' + b"[" * 3000 + b"]" * 3000 + b"}")


@pytest.mark.parametrize("member", ["temperature", "top_k", "seed", "presence_penalty"])
def test_numbers_past_any_double_are_refused(member: str) -> None:
    fields = read_fields(f'{{"{member}":1{"0" * 400}}}'.encode())
    assert fields is not None
    with pytest.raises(BadRequestError, match=f"{member} has 401 digits"):
        check_numbers(fields)
