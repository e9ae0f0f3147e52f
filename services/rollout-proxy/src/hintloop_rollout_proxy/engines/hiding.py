"""Takes out of an answer what its client did not ask for. Owns the ways to do that, fast and slow; reads nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from hintloop_rollout_proxy.engines.dialect import NULL, RAW_NULL, Hidden
from hintloop_rollout_proxy.engines.splice import remove_member, replace_member, reserialise

#: What reading JSON of an unexpected shape may raise.
UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)


def hide_members(data: bytes, members: Iterable[tuple[str, msgspec.Raw]], nulled: bool) -> bytes | None:
    """``data`` without members, each given with its value; ``None`` when one is not found as it should be."""
    out: bytes | None = data
    for (name, value), times in Counter((name, bytes(raw)) for name, raw in members).items():
        if out is None:
            return None
        if not nulled:
            out = remove_member(out, name.encode(), value, times)
        elif value != NULL:
            out = replace_member(out, name.encode(), value, NULL, times)
    return out


def hide_one(data: bytes, name: str, value: msgspec.Raw, nulled: bool) -> bytes | None:
    """:func:`hide_members` for one member."""
    if nulled:
        return data if value == RAW_NULL else replace_member(data, name.encode(), bytes(value), NULL)
    return remove_member(data, name.encode(), bytes(value))


def hide_ids(data: bytes, name: bytes, nulled: bool) -> bytes | None:
    """:func:`hide_one` for a list of ids that is there once, found by its own brackets."""
    key = b'"%b":[' % name
    start = data.find(key)
    end = data.find(b"]", start) + 1
    if start < 0 or end <= 0 or data.find(key, end) >= 0:
        return None
    value = start + len(key) - 1
    return b"%bnull%b" % (data[:value], data[end:]) if nulled else remove_member(data, name, data[value:end])


@lru_cache(64)
def stamp_of(fingerprint: str) -> bytes:
    """The member that says an engine's fingerprint."""
    return b'"system_fingerprint":' + msgspec.json.encode(fingerprint)


@lru_cache(64)
def model_members(model: str, public_model: str) -> tuple[bytes, bytes]:
    """The member that names the model, as the engine writes it and as agents see it."""
    return b'"model":' + msgspec.json.encode(model), b'"model":' + msgspec.json.encode(public_model)


def rename_model(data: bytes, model: str | None, public_model: str) -> bytes:
    """Let the answer say the configured model name."""
    if model is None or model == public_model:
        return data
    old, new = model_members(model, public_model)
    if old in data:
        return data.replace(old, new)

    def edit(document: Any) -> None:
        document["model"] = public_model

    return reserialise(data, edit)


def rename_in_error(data: bytes, model: str | None, public_model: str) -> bytes:
    """Let an error that repeats its request say the configured model name: the engine's own may be a directory."""
    if model is None or model == public_model:
        return data
    old, new = (msgspec.json.encode(name)[1:-1] for name in (model, public_model))
    for quote in (b"'", b'\\"', b'"', b"`"):
        data = data.replace(quote + old + quote, quote + new + quote)
    return data


def hide_slowly(data: bytes, hidden: Hidden) -> bytes:
    """Hide by parsing and writing again; raises one of ``UNREADABLE``."""
    return reserialise(data, lambda document: _hide(document, hidden))


def hide_unread(data: bytes, hidden: Hidden, public_model: str) -> bytes | None:
    """What the client may see of JSON that could not be read; ``None`` when that cannot be told either."""

    def edit(document: Any) -> None:
        _hide(document, hidden)
        for name in hidden.choice:
            document.pop(name, None)
        if isinstance(document.get("model"), str):
            document["model"] = public_model

    try:
        return reserialise(data, edit)
    except UNREADABLE:
        marks = [f'"{name}"'.encode() for name in (*hidden.choice, *hidden.reply)]
        if hidden.logprobs:
            marks.append(b'"logprobs":{')
        return None if any(mark in data for mark in marks) else data


def _hide(document: Any, hidden: Hidden) -> None:
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        if hidden.logprobs and "logprobs" in choice:
            choice["logprobs"] = None
        _hide_names(choice, hidden.choice, hidden.nulled)
    _hide_names(document, hidden.reply, hidden.nulled)


def _hide_names(holder: dict[str, Any], names: tuple[str, ...], nulled: bool) -> None:
    for name in names:
        if nulled and name in holder:
            holder[name] = None
        else:
            holder.pop(name, None)
