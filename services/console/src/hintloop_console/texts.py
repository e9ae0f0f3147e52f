"""What a turn says in words: its excerpt for lists, its words for the search. Reads messages; owns no row."""

from __future__ import annotations

import json
import re
from typing import Any

from hintloop_contract.messages import TurnRecord

EXCERPT = 240
#: Most characters of one turn that the search finds.
SEARCHED = 16_000
#: Scripts that are written without spaces: every character is a word of its own for the search.
_UNSPACED = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af\u0e00-\u0e7f])")
_WORD = re.compile(r"[^\W_]+")
_ID = re.compile(r"[0-9a-fA-F-]{6,}")


def sendable(text: str) -> str:
    """``text`` with U+FFFD for every half of a character: JSON can write one alone, UTF-8 and databases cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def sendable_throughout(value: Any) -> Any:
    """The same for every text inside ``value``, names of fields included."""
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, list):
        return [sendable_throughout(item) for item in value]
    if isinstance(value, dict):
        return {sendable_throughout(name): sendable_throughout(item) for name, item in value.items()}
    return value


def excerpt(record: TurnRecord) -> str:
    """The answer in a line: its words, else the tools that it calls."""
    return sendable(" ".join(_message_text(_loads(record.answer)).split())[:EXCERPT])


def searched(record: TurnRecord) -> str:
    """What the search looks into: what was new in the request, the answer, and what followed."""
    messages = _loads(record.messages)
    fresh: list[Any] = []
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, dict) and message.get("role") == "assistant":
            break
        fresh.append(message)
    next_state = _loads(record.next_state)
    parts = [*reversed(fresh), _loads(record.answer), *(next_state if isinstance(next_state, list) else [])]
    return words(sendable("\n".join(map(_message_text, parts))[:SEARCHED]))


def words(text: str) -> str:
    """``text`` with a space around every character of scripts that have none."""
    return _UNSPACED.sub(r" \1 ", text)


def match_of(query: str) -> str:
    """The query as FTS5 takes it: all words, the last one as a beginning; empty when it has no word."""
    phrases = []
    for chunk in query.split():
        found = _WORD.findall(words(chunk))
        if found:
            phrases.append('"' + " ".join(found) + '"')
    return " ".join(phrases) + "*" if phrases else ""


def id_of(query: str) -> str:
    """The query, when it looks like the beginning of an id, else empty."""
    return query.strip() if _ID.fullmatch(query.strip()) else ""


def _loads(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _message_text(message: Any) -> str:
    if not isinstance(message, dict):
        return ""
    parts = [_content_text(message.get("content"))]
    for call in message.get("tool_calls") or []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            parts.append(f"{function.get('name', '')}({_as_text(function.get('arguments', ''))})")
    return "\n".join(part for part in parts if part)


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = [part if isinstance(part, str) else part.get("text") for part in content if isinstance(part, str | dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
