"""Cuts members out of JSON text without re-serialising the rest, so that what stays is byte for byte the engine's.

A quoted key followed by a colon cannot occur inside a JSON string (its quotes would be escaped), so a member is
found by plain search. Engines write compact JSON; a text in any other layout is re-serialised instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def replace_member(data: bytes, key: bytes, value: bytes, replacement: bytes) -> bytes | None:
    """``data`` with the one member ``"key":value`` given another value; ``None`` when it is not found exactly once."""
    member = b'"' + key + b'":' + value
    if data.count(member) != 1:
        return None
    return data.replace(member, b'"' + key + b'":' + replacement)


def remove_member(data: bytes, key: bytes, value: bytes) -> bytes | None:
    """``data`` without the one member ``"key":value``; ``None`` when it is not found exactly once."""
    member = b'"' + key + b'":' + value
    start = data.find(member)
    if start < 0 or data.find(member, start + 1) >= 0:
        return None
    end = start + len(member)
    if data[start - 1 : start] == b",":
        return data[: start - 1] + data[end:]
    if data[end : end + 1] == b",":
        return data[:start] + data[end + 1 :]
    return data[:start] + data[end:]


def reserialise(data: bytes, edit: Callable[[dict[str, Any]], None]) -> bytes:
    """Parse, edit and write again: the slow way, for layouts that the search does not recognise.

    ``json`` and not msgspec, because engines have been seen to write ``NaN``.
    """
    document: dict[str, Any] = json.loads(data)
    if not isinstance(document, dict):
        return data
    edit(document)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
