"""Reads requests with messages: chat completions and the Messages API. Lenient: what has no known shape says nothing.

Contents may be a string, null, or a list of parts; arguments a JSON text or an object.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from hintloop_rollout_proxy.apis.identity import core_of
from hintloop_rollout_proxy.linking.chat_form import parts_of, text_of, to_chat
from hintloop_rollout_proxy.linking.events import Reading, ReadingBuilder, Reply, make_reply
from hintloop_rollout_proxy.linking.identity import read_body_ids
from hintloop_rollout_proxy.linking.normal_form import digest_of

_MESSAGE_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")


class _Request(msgspec.Struct):
    messages: list[msgspec.Raw]
    system: Any = None
    tools: Any = None
    metadata: Any = None
    user: Any = None
    session_id: Any = None
    conversation: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None


_decoder = msgspec.json.Decoder(_Request)


def read_messages(request: bytes, *, verbatim: bool) -> Reading:
    """The reading of a body with messages. ``verbatim``: they are chat messages as they stand.

    Raises:
        msgspec.DecodeError: the body is no request with messages.
        ValueError: a message is no object.
    """
    document = _decoder.decode(request)
    builder = ReadingBuilder()
    builder.system(text_of(document.system))
    silent = set()
    for index, raw in enumerate(document.messages):
        message = msgspec.json.decode(raw)
        if not isinstance(message, dict):
            raise ValueError(f"messages[{index}] is not an object")
        count = len(builder.events)
        _read_message(builder, message, index)
        if message.get("role") == "assistant" and len(builder.events) == count:
            silent.add(index)
    raws = document.messages

    def after(item: int) -> bytes:
        start = behind(item, silent)
        return join_raw(raws[start:]) if verbatim else to_chat(raws[start:])

    limit = document.max_completion_tokens or document.max_tokens
    return make_reading(builder, document.tools, after, msgspec.structs.asdict(document), limit)


def behind(item: int, silent: Collection[int]) -> int:
    """Where what follows an answer begins. ``silent``: the model's items in which nothing is compared; such a one right
    after an item is (what is left of) the answer: thoughts, or nothing."""
    start = item + 1
    while start in silent:
        start += 1
    return start


def make_reading(builder: ReadingBuilder, tools: Any, after: Any, body: dict[str, Any], limit: Any) -> Reading:
    """The reading of what ``builder`` holds."""
    previous = body.get("previous_response_id")
    previous_id = previous if isinstance(previous, str) and previous else None
    return Reading(
        events=tuple(builder.events),
        prefixes=builder.prefixes(seed=digest_of(previous_id.encode()) if previous_id else b""),
        hashes=builder.hashes(),
        blocks=builder.blocks(),
        tools=tool_names(tools),
        system=digest_of(*(text.encode("utf-8", "surrogatepass") for text in builder.systems)),
        after=after,
        ids=read_body_ids(body),
        previous_id=previous_id,
        max_tokens=limit if isinstance(limit, int) and not isinstance(limit, bool) else None,
    )


def join_raw(raws: Sequence[msgspec.Raw]) -> bytes:
    """A JSON array of raw items."""
    return b"[" + b",".join(bytes(raw) for raw in raws) + b"]"


def tool_names(tools: Any) -> frozenset[str]:
    """Names of the tools that a request offers."""
    names = set()
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            function = tool.get("function")
            named = function if isinstance(function, dict) else tool
            names.add(str(named.get("name") or tool.get("type") or ""))
    return frozenset(names)


def _read_message(builder: ReadingBuilder, message: dict[str, Any], index: int) -> None:
    role, content = message.get("role"), message.get("content")
    if role in ("system", "developer"):
        builder.system(text_of(content))
    elif role == "assistant":
        _read_assistant(builder, message, index)
    elif role in ("tool", "function"):
        builder.result(str(message.get("tool_call_id") or ""), text_of(content), index)
    else:
        for part in parts_of(content):
            if str(part.get("type", "")).endswith("tool_result"):
                builder.result(str(part.get("tool_use_id") or ""), text_of(part.get("content")), index)
            else:
                builder.user(part["text"] if isinstance(part.get("text"), str) else f"<{part.get('type')}>", index)


def _read_assistant(builder: ReadingBuilder, message: dict[str, Any], index: int) -> None:
    parts = parts_of(message.get("content"))
    marks = (core_of(part["signature"]) for part in parts if isinstance(part.get("signature"), str))
    mark = next((found for found in marks if found), "")
    for part in parts:
        if part.get("type") in _MESSAGE_CALLS:
            arguments = part.get("input", {})
            builder.call(str(part.get("id") or ""), str(part.get("name", "")), arguments, index, mark)
        elif part.get("type") not in ("thinking", "reasoning") and isinstance(part.get("text"), str):
            builder.answer(part["text"], index, mark)
    if isinstance(message.get("refusal"), str):
        builder.answer(message["refusal"], index)
    for call_id, name, arguments in calls_of(message):
        builder.call(call_id, name, arguments, index)


def calls_of(message: dict[str, Any]) -> list[tuple[str, str, object]]:
    """The tool calls of an assistant's chat message: id, name, arguments."""
    calls = message.get("tool_calls")
    found: list[tuple[str, str, object]] = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            found.append((str(call.get("id") or ""), str(function.get("name", "")), function.get("arguments", "")))
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        found.append(("", str(legacy.get("name", "")), legacy.get("arguments", "")))
    return found


def read_reply(answer: bytes | None) -> Reply:
    """A captured assistant message in comparable form; an absent one says nothing.

    Raises:
        msgspec.DecodeError: it is no JSON.
        ValueError: it is no object.
    """
    if answer is None:
        return Reply()
    message = msgspec.json.decode(answer)
    if not isinstance(message, dict):
        raise ValueError(f"the answer is no message but {message!r:.40}")
    builder = ReadingBuilder()
    _read_assistant(builder, {key: value for key, value in message.items() if key != "tool_calls"}, 0)
    text = " ".join(event.text for event in builder.events if event.kind == "A")
    calls = calls_of(message)
    calls += [
        (str(part.get("id") or ""), str(part.get("name", "")), part.get("input", {}))
        for part in parts_of(message.get("content"))
        if part.get("type") in _MESSAGE_CALLS
    ]
    return make_reply(text, calls)
