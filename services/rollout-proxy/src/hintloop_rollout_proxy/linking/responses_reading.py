"""Reads requests of the Responses API: items of many types, or only what is new after an earlier response."""

from __future__ import annotations

from typing import Any

import msgspec

from hintloop_rollout_proxy.apis.identity import core_of
from hintloop_rollout_proxy.linking.chat_form import call_arguments, parts_of, text_of, to_chat
from hintloop_rollout_proxy.linking.chat_reading import behind, make_reading
from hintloop_rollout_proxy.linking.events import Reading, ReadingBuilder


class _Request(msgspec.Struct):
    input: str | list[msgspec.Raw]
    instructions: Any = None
    tools: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    metadata: Any = None
    user: Any = None
    session_id: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None
    max_output_tokens: Any = None


_decoder = msgspec.json.Decoder(_Request)


def read_responses(request: bytes) -> Reading:
    """The reading of a Responses body.

    Raises:
        msgspec.DecodeError: the body is no request with input.
        ValueError: an item is no object.
    """
    document = _decoder.decode(request)
    builder = ReadingBuilder()
    builder.system(text_of(document.instructions))
    if isinstance(document.input, str):
        raws = [msgspec.Raw(msgspec.json.encode({"role": "user", "content": document.input}))]
    else:
        raws = document.input
    silent = set()
    for index, raw in enumerate(raws):
        item = msgspec.json.decode(raw)
        if not isinstance(item, dict):
            raise ValueError(f"input[{index}] is not an object")
        count = len(builder.events)
        _read_item(builder, item, index)
        models = item.get("role") == "assistant" or item.get("type") == "reasoning"
        if models and len(builder.events) == count:
            silent.add(index)

    def after(item: int) -> bytes:
        return to_chat(raws[behind(item, silent) :])

    return make_reading(builder, document.tools, after, msgspec.structs.asdict(document), document.max_output_tokens)


def _read_item(builder: ReadingBuilder, item: dict[str, Any], index: int) -> None:
    kind = str(item.get("type") or ("message" if "role" in item else ""))
    identifier = item.get("id")
    mark = (core_of(identifier) if isinstance(identifier, str) else None) or ""
    if kind == "message":
        _read_message(builder, item, index, mark)
    elif kind == "item_reference":
        builder.answer("", index, mark)
    elif kind.endswith("_output"):
        builder.result(str(item.get("call_id") or ""), text_of(item.get("output")), index)
    elif kind.endswith("_call"):
        name = str(item.get("name") or kind)
        builder.call(str(item.get("call_id") or item.get("id") or ""), name, call_arguments(item), index, mark)


def _read_message(builder: ReadingBuilder, item: dict[str, Any], index: int, mark: str) -> None:
    role = item.get("role")
    if role in ("system", "developer"):
        builder.system(text_of(item.get("content")))
        return
    for part in parts_of(item.get("content")):
        text = part.get("text", part.get("refusal"))
        if role == "assistant":
            builder.answer(text if isinstance(text, str) else "", index, mark)
        else:
            builder.user(text if isinstance(text, str) else f"<{part.get('type')}>", index)
