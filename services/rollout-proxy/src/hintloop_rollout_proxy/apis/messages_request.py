"""From a Messages request to a chat completion. Owns which member becomes what, and what cannot be translated."""

from __future__ import annotations

from typing import Any

import msgspec

from hintloop_rollout_proxy.apis.messages_input import read_messages, read_system
from hintloop_rollout_proxy.apis.translation import Fields, UntranslatableError

#: Same name and meaning in both APIs, or an extra that both engines take on either.
COPIED = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "cache_salt",
    "frequency_penalty",
    "ignore_eos",
    "lora_path",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "priority",
    "repetition_penalty",
    "seed",
    "session_id",
    "stop_token_ids",
    "vllm_xargs",
)
#: Ask for something that a chat completion cannot do.
UNTRANSLATABLE = ("container", "mcp_servers")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def refuse(what: str) -> None:
    """Raise ``UntranslatableError``: strict reading."""
    raise UntranslatableError(f"{what} has no form in a chat completion")


def read_request(fields: Fields) -> Fields:
    """The chat completion to ask.

    Raises:
        UntranslatableError: the request asks for something without a chat form, or is not as documented.
    """
    try:
        values = {name: msgspec.json.decode(bytes(raw)) for name, raw in fields.items()}
    except (msgspec.DecodeError, RecursionError) as error:
        raise UntranslatableError(f"the request cannot be read: {error}") from error
    for name in UNTRANSLATABLE:
        if values.get(name):
            refuse(name)
    limit = values.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool):
        refuse(f"max_tokens = {limit!r:.80}")
    messages = [*read_system(values.get("system"), refuse), *read_messages(values.get("messages"), refuse)]
    if not messages or messages[-1]["role"] == "assistant":
        # A final assistant message asks to be continued, which templates do not do alike.
        refuse("an answer begun by the agent, or no message at all,")
    chat: dict[str, Any] = {name: fields[name] for name in COPIED if name in fields and values[name] is not None}
    chat |= {"messages": messages, "max_completion_tokens": limit}
    if values.get("stop_sequences"):
        chat["stop"] = values["stop_sequences"]
    chat |= _tools(values) | _thinking(values) | _output(values.get("output_config"))
    if values.get("stream") is True:
        # Usage in every chunk, since the first event of this API already tells the length of the prompt.
        chat |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    return {name: _raw(value) for name, value in chat.items()}


def _raw(value: Any) -> msgspec.Raw:
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(value))


def _tools(values: dict[str, Any]) -> dict[str, Any]:
    given, choice = values.get("tools"), values.get("tool_choice")
    if given is not None and not isinstance(given, list):
        refuse(f"tools of {type(given).__name__}")
    if not given:
        return {}
    return {"tools": [_tool(tool) for tool in given], **_tool_choice(choice)}


def _tool(tool: Any) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else type(tool).__name__
    if kind not in (None, "custom") or not isinstance(tool.get("name"), str) or tool.get("defer_loading"):
        refuse(f"a tool of type {kind!r}")
    function = {"name": tool["name"]}
    for name, source in (("description", "description"), ("parameters", "input_schema"), ("strict", "strict")):
        if tool.get(source) is not None:
            function[name] = tool[source]
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> dict[str, Any]:
    if choice is None:
        return {}
    kind = choice.get("type") if isinstance(choice, dict) else None
    chat: dict[str, Any] = {}
    if kind == "tool" and isinstance(choice.get("name"), str):
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif kind in _CHOICES:
        chat["tool_choice"] = _CHOICES[kind]
    else:
        refuse(f"tool_choice = {choice!r:.80}")
    if choice.get("disable_parallel_tool_use") is True:
        chat["parallel_tool_calls"] = False
    return chat


def _thinking(values: dict[str, Any]) -> dict[str, Any]:
    """Whether the model is to think. A budget is an upper bound, and not kept: engines reject one unless configured."""
    given = values.get("chat_template_kwargs")
    kwargs = dict(given) if isinstance(given, dict) else {}
    thinking = values.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind in ("enabled", "disabled"):
        kwargs.setdefault("enable_thinking", kind == "enabled")
    return {"chat_template_kwargs": kwargs} if kwargs else {}


def _output(config: Any) -> dict[str, Any]:
    if not isinstance(config, dict):
        return {}
    chat: dict[str, Any] = {}
    if config.get("effort") is not None:
        chat["reasoning_effort"] = config["effort"]
    shape = config.get("format")
    if isinstance(shape, dict) and shape.get("type") == "json_schema":
        schema = {"name": "output", "schema": shape.get("schema")}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif shape is not None:
        refuse(f"output_config.format = {shape!r:.80}")
    return chat
