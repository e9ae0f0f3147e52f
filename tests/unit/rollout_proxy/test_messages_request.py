"""What of a Messages request reaches the engine as a chat completion, and what cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hintloop_rollout_proxy.apis import messages
from hintloop_rollout_proxy.apis.translation import UntranslatableError

from .scripted_answers import as_fields, as_values

BASH = {"name": "Bash", "description": "d", "input_schema": {"type": "object"}}
USER = {"role": "user", "content": "Hi"}
CACHED = {"cache_control": {"type": "ephemeral"}}


def asked(**body: Any) -> dict[str, Any]:
    whole = {"model": "m", "max_tokens": 64, "messages": [USER], **body}
    return as_values(messages.translate(as_fields(whole)).fields)


def chat(*given: Any, **body: Any) -> Any:
    return asked(messages=list(given), **body)["messages"]


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def test_a_plain_request() -> None:
    assert asked() == {"model": "m", "messages": [USER], "max_completion_tokens": 64}


def test_system_texts_and_cache_marks() -> None:
    blocks = [text("x-anthropic-billing-header: cc=1;"), text("One.", **CACHED), text("Two.")]
    reminder = {"role": "system", "content": [text("Remember.")]}
    found = chat(USER, reminder, USER, system=blocks)
    assert found == [
        {"role": "system", "content": "One.\nTwo."},
        USER,
        {"role": "system", "content": "Remember."},
        USER,
    ]
    assert chat(USER, system="Only.")[0] == {"role": "system", "content": "Only."}
    assert chat(USER, system=[]) == chat(USER, system="") == [USER]


def test_blocks_become_messages() -> None:
    found = chat(
        {"role": "user", "content": [text("Go", **CACHED)]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                text("Look."),
                {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"c": "ö"}},
                {"type": "tool_use", "id": "t2", "name": "Bash", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                text("first"),
                {"type": "tool_result", "tool_use_id": "t1", "content": "sun", **CACHED},
                {"type": "tool_result", "tool_use_id": "t2", "content": [text("a"), text("b")], "is_error": True},
                {"type": "tool_result", "tool_use_id": "t3"},
                text("second"),
            ],
        },
    )
    calls = [("t1", '{"c":"ö"}'), ("t2", "{}")]
    assert found == [
        {"role": "user", "content": "Go"},
        {
            "role": "assistant",
            "content": "Look.",
            "reasoning": "Hm.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": name, "type": "function", "function": {"name": "Bash", "arguments": arguments}}
                for name, arguments in calls
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "sun"},
        {"role": "tool", "tool_call_id": "t2", "content": "a\nb", "is_error": True},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "user", "content": [text("first"), text("second")]},
    ]


def test_an_answer_of_calls_alone_has_no_content() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "x"}
    found = chat(USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]})
    assert [message["content"] for message in found] == ["Hi", None, "x"]
    assert chat({"role": "assistant", "content": []}, USER)[0] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "Bash"}, {"tool_choice": {"type": "function", "function": {"name": "Bash"}}}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
        (None, {}),
    ],
)
def test_tools_and_choice(choice: Any, expected: dict[str, Any]) -> None:
    found = asked(tools=[{**BASH, "type": "custom", **CACHED}], tool_choice=choice)
    function = {"name": "Bash", "description": "d", "parameters": {"type": "object"}}
    assert found.pop("tools") == [{"type": "function", "function": function}]
    assert {name: found[name] for name in found if "tool" in name} == expected
    assert "tool_choice" not in asked(tools=[], tool_choice={"type": "auto"})


def test_limits_shape_and_sampling() -> None:
    schema = {"type": "object"}
    found = asked(
        stop_sequences=["END"],
        temperature=0.5,
        top_p=0.9,
        top_k=20,
        metadata={"user_id": "u"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": schema}},
        service_tier="auto",
        stream=True,
    )
    assert found == {
        "model": "m",
        "messages": [USER],
        "max_completion_tokens": 64,
        "stop": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "chat_template_kwargs": {"enable_thinking": True},
        "reasoning_effort": "high",
        "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}},
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_thinking_is_switched_and_left_alone() -> None:
    assert asked(thinking={"type": "disabled"})["chat_template_kwargs"] == {"enable_thinking": False}
    assert "chat_template_kwargs" not in asked(thinking={"type": "adaptive"})
    given = {"enable_thinking": True, "k": 1}
    assert asked(thinking={"type": "disabled"}, chat_template_kwargs=given)["chat_template_kwargs"] == given


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": None},
        {"max_tokens": "64"},
        {"messages": []},
        {"messages": "x"},
        {"messages": ["x"]},
        {"messages": [USER, {"role": "assistant", "content": "{"}]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": [IMAGE]}]},
        {"messages": [{"role": "user", "content": 3}]},
        {"messages": [{"role": "user", "content": ["x"]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use", "id": "s"}]}, USER]},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {}}]}, USER]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        {"tools": [{**BASH, "defer_loading": True}]},
        {"tools": "x"},
        {"tools": [BASH], "tool_choice": {"type": "other"}},
        {"tools": [BASH], "tool_choice": "auto"},
        {"output_config": {"format": {"type": "grammar"}}},
        {"container": "c"},
        {"mcp_servers": [{"name": "s"}]},
    ],
    ids=lambda body: json.dumps(body)[:60],
)
def test_what_has_no_chat_form_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(UntranslatableError, match="no form"):
        asked(**body)
