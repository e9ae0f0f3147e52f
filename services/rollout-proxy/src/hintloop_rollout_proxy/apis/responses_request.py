"""From a Responses request to a chat completion. Owns which member becomes what, and what cannot be translated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from hintloop_rollout_proxy.apis.responses_input import CUSTOM_INPUT, Message, flat_name, read_input
from hintloop_rollout_proxy.apis.translation import Fields, UntranslatableError

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"

#: Same name and meaning in both APIs, or an extra that both engines take on either.
COPIED = (
    "model",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "metadata",
    "user",
    "prompt_cache_key",
    "safety_identifier",
    "cache_salt",
    "chat_template_kwargs",
    "frequency_penalty",
    "guided_json",
    "ignore_eos",
    "include_reasoning",
    "include_stop_str_in_output",
    "logit_bias",
    "lora_path",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "priority",
    "repetition_penalty",
    "seed",
    "separate_reasoning",
    "session_id",
    "skip_special_tokens",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "top_k",
    "vllm_xargs",
)
#: What asks for something that a chat completion cannot do. Each is refused unless it has the value that asks for none.
UNTRANSLATABLE: dict[str, tuple[Any, ...]] = {
    "background": (None, False),
    "conversation": (None,),
    "previous_input_messages": (None,),
    "prompt": (None,),
    "truncation": (None, "disabled"),
}
#: Tools of the vendor's own servers that both engines leave out of the prompt, so that no answer depends on them.
LEFT_OUT_TOOLS = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")


@dataclass(frozen=True, slots=True)
class Names:
    """How tools are called by the model and by the agent: functions in namespaces, and custom tools."""

    namespaced: dict[str, tuple[str, str]] = field(default_factory=dict)
    custom: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with what its answer must repeat or depends on. ``messages`` are those without the instructions."""

    values: dict[str, Any]
    messages: list[Message]
    chat: Fields
    names: Names

    @property
    def wants_logprobs(self) -> bool:
        """Whether texts come with log-probabilities."""
        return LOGPROBS in (self.values.get("include") or ())

    @property
    def stored(self) -> bool:
        """Whether later requests may refer to the answer."""
        return self.values.get("store") is not False


def refuse(what: str) -> None:
    """Raise ``UntranslatableError``: strict reading."""
    raise UntranslatableError(f"{what} has no form in a chat completion")


def read_request(fields: Fields, history: list[Message], known: dict[str, Any]) -> Asked:
    """Read a request that follows ``history`` and may refer to ``known`` items.

    Raises:
        UntranslatableError: the request asks for something without a chat form, or is not as documented.
    """
    try:
        values = {name: msgspec.json.decode(bytes(raw)) for name, raw in fields.items()}
    except (msgspec.DecodeError, RecursionError) as error:
        raise UntranslatableError(f"the request cannot be read: {error}") from error
    for name, allowed in UNTRANSLATABLE.items():
        if values.get(name) not in allowed:
            refuse(f"{name} = {values[name]!r:.80}")
    messages = [*history, *read_input(values.get("input"), refuse, known)]
    if not messages:
        refuse("an empty input")
    tools, names = _tools(values.get("tools"))
    chat: dict[str, Any] = {name: fields[name] for name in COPIED if name in fields and values[name] is not None}
    instructions = values.get("instructions")
    chat["messages"] = [*_instructions(instructions), *messages]
    if tools:
        chat["tools"] = tools
    chat |= _tool_choice(values.get("tool_choice"), tools) | _shape(values) | _limits(values)
    if values.get("stream") is True:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return Asked(values, messages, {name: _raw(value) for name, value in chat.items()}, names)


def _raw(value: Any) -> msgspec.Raw:
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(value))


def _instructions(instructions: Any) -> list[Message]:
    if instructions is None or instructions == "":
        return []
    if not isinstance(instructions, str):
        refuse(f"instructions of {type(instructions).__name__}")
    return [{"role": "system", "content": instructions}]


def _limits(values: dict[str, Any]) -> dict[str, Any]:
    chat: dict[str, Any] = {}
    if values.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = values["max_output_tokens"]
    include = values.get("include")
    if isinstance(include, list) and LOGPROBS in include:
        chat["logprobs"] = True
        chat["top_logprobs"] = values.get("top_logprobs") or 0
    return chat


def _shape(values: dict[str, Any]) -> dict[str, Any]:
    """Reasoning effort and the answer's format."""
    chat: dict[str, Any] = {}
    reasoning, text = values.get("reasoning"), values.get("text")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    shape = text.get("format") if isinstance(text, dict) else None
    kind = shape.get("type") if isinstance(shape, dict) else None
    if kind == "json_schema":
        assert isinstance(shape, dict)
        schema = {name: shape[name] for name in ("name", "description", "schema", "strict") if name in shape}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif kind == "json_object":
        chat["response_format"] = {"type": "json_object"}
    elif shape is not None and kind != "text":
        refuse(f"text.format of type {kind!r}")
    return chat


def _tools(given: Any) -> tuple[list[dict[str, Any]], Names]:
    tools: list[dict[str, Any]] = []
    namespaced: dict[str, tuple[str, str]] = {}
    custom: set[str] = set()
    if given is not None and not isinstance(given, list):
        refuse(f"tools of {type(given).__name__}")
    for tool in given or ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind == "namespace":
            for member in tool.get("tools") or ():
                name = flat_name(tool.get("name"), str(member.get("name")))
                namespaced[name] = (str(tool.get("name")), str(member.get("name")))
                tools.append(_tool({**member, "name": name}, custom))
        elif kind not in LEFT_OUT_TOOLS:
            tools.append(_tool(tool, custom))
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        refuse("tools of equal names")
    return tools, Names(namespaced, frozenset(custom))


def _tool(tool: Any, custom: set[str]) -> dict[str, Any]:
    kind = tool.get("type", "function") if isinstance(tool, dict) else type(tool).__name__
    if kind not in ("function", "custom") or not isinstance(tool.get("name"), str) or tool.get("defer_loading"):
        refuse(f"a tool of type {kind!r}")
    if kind == "custom":
        custom.add(tool["name"])
        return {"type": "function", "function": _custom_function(tool)}
    function = {
        name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None
    }
    return {"type": "function", "function": function}


def _custom_function(tool: dict[str, Any]) -> dict[str, Any]:
    """A custom tool as a function of one string, as both engines' own endpoints offer it to a model."""
    texts = [tool["description"]] if tool.get("description") else []
    shape = tool.get("format")
    if isinstance(shape, dict) and shape.get("type") == "grammar":
        texts.append(f"The input must conform to this {shape.get('syntax')} grammar:\n{shape.get('definition')}")
    parameters = {
        "type": "object",
        "properties": {CUSTOM_INPUT: {"type": "string", "description": "The free text that the tool is given."}},
        "required": [CUSTOM_INPUT],
        "additionalProperties": False,
    }
    described = {"description": "\n\n".join(texts)} if texts else {}
    return {"name": tool["name"], **described, "parameters": parameters}


def _tool_choice(choice: Any, tools: list[dict[str, Any]]) -> dict[str, Any]:
    if choice is None:
        return {}
    if choice in ("auto", "none", "required"):
        return {"tool_choice": choice} if tools else {}
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        name = flat_name(choice.get("namespace"), str(choice.get("name")))
        if name in [tool["function"]["name"] for tool in tools]:
            return {"tool_choice": {"type": "function", "function": {"name": name}}}
    refuse(f"tool_choice = {choice!r:.80}")
    return {}
