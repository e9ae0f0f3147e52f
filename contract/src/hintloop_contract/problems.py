"""How the `_prm_url` routes say what is wrong with a request: one form for every service behind the address.

Owns the form and its words. It knows pydantic's errors, and no web framework.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

INVALID = "invalid"
_SHOWN = 60


class Problem(BaseModel):
    """What is wrong, for programs and for people."""

    reason: str
    """A word to tell kinds apart, such as `invalid` or `prm_engine`."""
    message: str
    """What is wrong and what to change; it begins with the field's name where one is at fault."""
    field: str | None = None
    """The field at fault, such as `messages[0]`."""


class ProblemReply(BaseModel):
    """An answer that is none."""

    detail: Problem


def problem(reason: str, message: str, field: str | None = None) -> dict[str, Any]:
    """The ``detail`` of an answer, in characters that every answer can carry."""
    return {"reason": reason, "message": _sendable(message), "field": None if field is None else _sendable(field)}


def invalid(errors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ``detail`` for a body that does not fit its model: the first of pydantic's ``errors``, by its field."""
    first = errors[0]
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error", first["msg"])
        return problem(INVALID, f"the body is no JSON: {why} at character {first['loc'][-1]}")
    field = _path([part for part in first["loc"] if part != "body"])
    value = first.get("input")
    shown = "" if value is None or isinstance(value, dict | list) else f" {value!r:.{_SHOWN}}:"
    message = str(first["msg"]).removeprefix("Value error, ")
    return problem(INVALID, f"{field or 'the body'}:{shown} {message}", field or None)


def _path(parts: Sequence[Any]) -> str:
    """``messages[3].role`` from ``("messages", 3, "role")``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _sendable(text: str) -> str:
    """JSON can write half a character (`"\\ud800"`), UTF-8 cannot."""
    return text.encode("utf-8", "backslashreplace").decode()
