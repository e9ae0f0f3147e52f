"""What of a Responses request reaches the engine as a chat completion, and what cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hintloop_rollout_proxy.apis import responses
from hintloop_rollout_proxy.apis.identity import seal_reasoning
from hintloop_rollout_proxy.apis.translation import UntranslatableError

from .scripted_answers import as_fields, as_values

WEATHER = {"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}, "strict": True}


def asked(**body: Any) -> dict[str, Any]:
    return as_values(responses.translate(as_fields({"model": "m", "input": "Hi", **body})).fields)


def messages(*items: Any, **body: Any) -> Any:
    return asked(input=list(items), **body)["messages"]


def text(value: str) -> dict[str, str]:
    return {"type": "input_text", "text": value}


def test_a_string_is_the_users_word() -> None:
    assert asked() == {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def test_instructions_come_first_and_roles_stay() -> None:
    found = messages(
        {"role": "developer", "content": "D"},
        {"type": "message", "role": "system", "content": [text("S1"), text("S2")]},
        {"role": "user", "content": [text("one")]},
        {"role": "user", "content": [text("two"), text("three")]},
        instructions="I",
    )
    assert found == [
        {"role": "system", "content": "I"},
        {"role": "developer", "content": "D"},
        {"role": "system", "content": "S1\nS2"},
        {"role": "user", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "text", "text": "three"}]},
    ]


def test_items_of_one_answer_become_one_message() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Ö"}', "id": "fc_1"}
    found = messages(
        {"role": "user", "content": "Go"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "Look."}]},
        call,
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": [text("rain"), text("wind")]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Short."}]},
        {"role": "assistant", "content": "Done."},
        {"role": "assistant", "content": "Really."},
    )
    function = {"name": "weather", "arguments": '{"city":"Ö"}'}
    assert found[1:] == [
        {
            "role": "assistant",
            "reasoning": "Hm.",
            "reasoning_content": "Hm.",
            "content": "Look.",
            "tool_calls": [{"id": name, "type": "function", "function": function} for name in ("c1", "c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {"role": "tool", "tool_call_id": "c2", "content": "rain\nwind"},
        {"role": "assistant", "reasoning": "Short.", "reasoning_content": "Short.", "content": "Done."},
        {"role": "assistant", "content": "Really."},
    ]


def test_reasoning_begins_a_new_message() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "T"}]}
    found = messages({"role": "assistant", "content": "A"}, thought, {"role": "assistant", "content": "B"})
    assert [message["content"] for message in found] == ["A", "B"]
    assert "reasoning" not in found[0]


@pytest.mark.parametrize("sealed", ["E1", "hlr1.####", "hlr1." + "eJw="])
def test_what_others_encrypted_says_nothing(sealed: str) -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": sealed}
    assert messages(item, {"role": "user", "content": "U"}) == [{"role": "user", "content": "U"}]


def test_a_seal_that_unpacks_to_too_much_says_nothing() -> None:
    item = {"type": "reasoning", "summary": [], "encrypted_content": seal_reasoning("x" * 5_000_000)}
    assert len(item["encrypted_content"]) < 10_000
    assert len(messages(item, {"role": "user", "content": "U"})) == 1


def test_custom_calls_and_namespaces_take_their_chat_names() -> None:
    tools = [
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
        {"type": "namespace", "name": "crm", "description": "", "tools": [{"type": "function", "name": "find"}]},
    ]
    found = asked(
        tools=tools,
        input=[
            {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "+a\n"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
            {"type": "function_call", "call_id": "c2", "name": "find", "namespace": "crm", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c2", "output": "ok"},
        ],
    )
    calls = [m["tool_calls"][0]["function"] for m in found["messages"] if m["role"] == "assistant"]
    assert calls == [{"name": "patch", "arguments": '{"input":"+a\\n"}'}, {"name": "crm__find", "arguments": "{}"}]
    patch, find = (tool["function"] for tool in found["tools"])
    assert find["name"] == "crm__find"
    assert patch["parameters"]["required"] == ["input"]
    assert "lark grammar:\nstart: X" in patch["description"]


def test_tools_and_choice() -> None:
    found = asked(tools=[WEATHER], tool_choice={"type": "function", "name": "weather"}, parallel_tool_calls=False)
    assert found["tools"] == [{"type": "function", "function": {k: v for k, v in WEATHER.items() if k != "type"}}]
    assert found["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert found["parallel_tool_calls"] is False
    assert asked(tools=[WEATHER], tool_choice="required")["tool_choice"] == "required"
    assert "tool_choice" not in asked(tool_choice="auto", tools=[])


def test_a_search_tool_that_no_engine_renders_is_left_out() -> None:
    found = asked(tools=[WEATHER, {"type": "web_search", "external_web_access": False}])
    assert [tool["function"]["name"] for tool in found["tools"]] == ["weather"]
    with pytest.raises(UntranslatableError):
        asked(tools=[WEATHER, {"type": "web_search"}], tool_choice={"type": "web_search"})


def test_limits_shape_and_sampling() -> None:
    schema = {"type": "object", "properties": {}}
    found = asked(
        max_output_tokens=64,
        temperature=0.5,
        top_p=0.9,
        reasoning={"effort": "high", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        include=["message.output_text.logprobs"],
        top_logprobs=3,
        stream=True,
        chat_template_kwargs={"enable_thinking": False},
        user="u",
        service_tier="flex",
        unknown_to_us=1,
    )
    assert found == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_completion_tokens": 64,
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning_effort": "high",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}},
        "logprobs": True,
        "top_logprobs": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": False},
        "user": "u",
    }
    assert asked(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    assert "response_format" not in asked(text={"format": {"type": "text"}, "verbosity": "low"})


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}


@pytest.mark.parametrize(
    "body",
    [
        {"background": True},
        {"conversation": "conv_1"},
        {"prompt": {"id": "p"}},
        {"truncation": "auto"},
        {"input": []},
        {"input": 3},
        {"input": [3]},
        {"input": [{"role": "user", "content": [IMAGE]}]},
        {"input": [{"role": "user", "content": 3}]},
        {"input": [{"role": "critic", "content": "x"}]},
        {"input": [{"type": "computer_call", "call_id": "c"}]},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": [IMAGE]}]},
        {"input": [{"type": "function_call_output", "output": "x"}]},
        {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]},
        {"instructions": ["x"]},
        {"tools": [{"type": "file_search", "vector_store_ids": []}]},
        {"tools": [{"type": "computer_use_preview"}]},
        {"tools": [{"type": "mcp", "server_label": "s"}]},
        {"tools": [{"type": "function"}]},
        {"tools": [WEATHER, WEATHER]},
        {"tools": "x"},
        {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}},
        {"text": {"format": {"type": "grammar"}}},
    ],
    ids=lambda body: json.dumps(body)[:60],
)
def test_what_has_no_chat_form_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(UntranslatableError, match="no form"):
        asked(**body)
