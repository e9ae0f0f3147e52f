"""The ways of asking an engine for one answer, in the order in which to try them. Pure: sends nothing.

First with our additions; should the engine reject them, as the client wrote it: no request fails because of what we
add. Should it reject that too, in a form that an engine or template with narrower tastes takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from hintloop_rollout_proxy.engines import Dialect, reader_of
from hintloop_rollout_proxy.engines.dialect import CHAT, GENERATE, NOTHING, Extension, Fields, Headers, Reader
from hintloop_rollout_proxy.engines.native import NativeReader
from hintloop_rollout_proxy.upstream import Engine

#: Statuses by which an engine may reject what only we asked for, or a form that it does not take.
REJECTED = (400, 422)

_messages_decoder = msgspec.json.Decoder(list[dict[str, Any]])


class Ask(msgspec.Struct, frozen=True):
    """One way: the body and headers to add, and who reads the answer."""

    body: bytes
    headers: tuple[tuple[str, str], ...]
    reader: Reader
    written: bool = False
    """Whether it is what the client wrote, whose refusal is the client's."""
    mended: Fields | None = None
    """The members, where messages were brought into another form."""


class Question(msgspec.Struct, frozen=True):
    """What is asked: ``fields`` to an engine ``api``, or to one whose answers carry no ids (``None``)."""

    api: str | None
    fields: Fields
    headers: Headers
    trainable: bool
    body: bytes | None = None
    """``fields`` as the client wrote them, where nothing was changed."""


def ways_of(
    question: Question, dialect: Dialect, engine: Engine, public_model: str, adapter: str | None = None
) -> Iterator[Ask]:
    """Every way of asking ``engine``, which serves under a name of its own what agents call ``public_model``.

    With the name of an ``adapter``, the answer is to be made under it.
    """
    fields, api, body = question.fields, question.api, question.body
    name = engine.model
    if name is not None and adapter is not None:
        name = dialect.adapted(name, adapter)
    if adapter is not None and api == GENERATE:
        fields, body = {**fields, "lora_path": msgspec.Raw(msgspec.json.encode(adapter))}, None
    model = None if name is None else msgspec.Raw(msgspec.json.encode(name))
    if model is not None and fields.get("model", model) != model:
        fields, body = {**fields, "model": model}, None
    if api is None:
        yield Ask(body or msgspec.json.encode(fields), (), NativeReader(name, public_model), written=True)
        return
    mended = mend(fields) if api == CHAT and engine.wants_mended else None
    if mended is not None:
        yield _extended(mended, question, dialect, engine, public_model, mended)
    if question.trainable:
        yield _extended(fields, question, dialect, engine, public_model)
    yield Ask(body or msgspec.json.encode(fields), (), reader_of(api, NOTHING, public_model), written=True)
    mended = mend(fields) if api == CHAT and mended is None else None
    if mended is not None:
        yield _extended(mended, question, dialect, engine, public_model, mended)


def _extended(
    fields: Fields,
    question: Question,
    dialect: Dialect,
    engine: Engine,
    public_model: str,
    mended: Fields | None = None,
) -> Ask:
    assert question.api is not None
    more = dict(fields)
    found = dialect.extend(question.api, more, question.headers) if question.trainable else None
    extension = found or Extension(NOTHING)
    reader = reader_of(question.api, extension.hidden, public_model, engine.fingerprint)
    return Ask(msgspec.json.encode(more), extension.headers, reader, mended=mended)


def mend(fields: Fields) -> Fields | None:
    """A chat whose messages are in the form that the strictest engines take: no ``developer`` role, arguments of
    tool calls as text. ``None`` when nothing of that is there."""
    raw = bytes(fields.get("messages", b""))
    if b'"developer"' not in raw and b'"tool_calls"' not in raw:
        return None
    try:
        messages = _messages_decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    changed = False
    for message in messages:
        if message.get("role") == "developer":
            message["role"], changed = "system", True
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            changed = _arguments_as_text(call) or changed
    return {**fields, "messages": msgspec.Raw(msgspec.json.encode(messages))} if changed else None


def _arguments_as_text(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
        return False
    function["arguments"] = msgspec.json.encode(function["arguments"]).decode()
    return True
