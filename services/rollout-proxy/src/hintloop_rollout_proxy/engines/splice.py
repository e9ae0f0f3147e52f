"""Cuts members out of JSON text, or adds one, without re-serialising: what stays is byte for byte the engine's.

A quoted key followed by a colon cannot occur inside a JSON string (its quotes would be escaped), so a member is
found by plain search. Engines write compact JSON; a text in any other layout is re-serialised instead, and so is one
in which the member stands more often than expected.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def replace_member(data: bytes, key: bytes, value: bytes, replacement: bytes, times: int = 1) -> bytes | None:
    """``data`` with the member ``"key":value`` given another value; ``None`` when it is not there ``times`` times."""
    places = _places(data, key, value)
    if len(places) != times:
        return None
    skipped = len(key) + 3
    for start in reversed(places):
        begin = start + skipped
        data = data[:begin] + replacement + data[begin + len(value) :]
    return data


def remove_member(data: bytes, key: bytes, value: bytes, times: int = 1) -> bytes | None:
    """``data`` without the member ``"key":value``; ``None`` when it is not there ``times`` times."""
    places = _places(data, key, value)
    if len(places) != times:
        return None
    length = len(key) + 3 + len(value)
    for start in reversed(places):
        end = start + length
        if data[start - 1 : start] == b",":
            start -= 1
        elif data[end : end + 1] == b",":
            end += 1
        data = data[:start] + data[end:]
    return data


def add_member(data: bytes, member: bytes) -> bytes:
    """The JSON object ``data`` with one more member at its end."""
    end = data.rstrip()
    return b"%b,%b}" % (end[:-1], member) if end.endswith(b"}") else data


def _places(data: bytes, key: bytes, value: bytes) -> list[int]:
    """Where the member stands. The key is searched and the value compared: long values are not searched for."""
    needle = b'"%b":' % key
    places = []
    start = data.find(needle)
    while start >= 0:
        begin = start + len(needle)
        if data.startswith(value, begin):
            places.append(start)
            begin += len(value)
        start = data.find(needle, begin)
    return places


def reserialise(data: bytes, edit: Callable[[Any], None]) -> bytes:
    """Parse, edit and write again: the slow way, for layouts that the search does not recognise.

    ``json`` and not msgspec, because engines have been seen to write ``NaN``.
    """
    document = json.loads(data)
    if not isinstance(document, dict | list):
        return data
    edit(document)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
