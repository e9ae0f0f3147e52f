"""Forms in which texts, calls and ids can be compared. Owns what counts as equal; knows no request and no API.

White space is collapsed, inline thinking left out, arguments sorted, call ids reduced to letters and digits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

#: Inline thinking, which agents strip before they send an answer back. Templates may open it in the prompt.
_THINKING = re.compile(r"<think>.*?</think>|\A[^<]*</think>", re.DOTALL)
_NOT_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]+")
#: Scripts without spaces count character by character.
_WORD = re.compile(r"[぀-ヿ㐀-鿿가-힯]|[^\W぀-ヿ㐀-鿿가-힯]+")
#: Markup around parts of an answer, which an agent takes out before it quotes them.
_TAG = re.compile(r"</?[A-Za-z][\w-]*>")
#: What may be the id of a call inside a rendered text.
_ID_LIKE = re.compile(r"[A-Za-z][A-Za-z0-9_.:\-]{4,79}")
#: Changes between letters and digits from which an id was drawn: a name with a number has one or two.
RANDOM_CHANGES = 4
#: What agents put before a user's text: a time, a channel.
_LABEL = re.compile(r"^(\[[^\]]*\]\s*)+")
#: Words by which a quotation is recognised; agents cut what they quote.
NUM_QUOTED_WORDS = 24
#: Words from which a text is also recognised by later passages, and the characters in which they are looked for.
MIN_PASSAGES = 9
MAX_QUOTED_LENGTH = 20_000
#: Words of one text that are looked at.
MAX_WORDS = 40_000


def collapse(text: str) -> str:
    """Text with every run of white space made one space, trimmed, without inline thinking."""
    if "</think>" in text:
        text = _THINKING.sub(" ", text)
    return " ".join(text.split())


def without_label(text: str) -> str:
    """A user's text without the time or the channel that its agent put before it, in brackets."""
    return _LABEL.sub("", text)


def words_of(text: str) -> list[str]:
    """The words of a text; of a very long one its first and last."""
    words = _WORD.findall(text)
    if len(words) > MAX_WORDS:
        half = MAX_WORDS // 2
        words = words[:half] + words[-half:]
    return words


def beginning_of(text: str) -> str:
    """The first words of a text, by which it is recognised where it is quoted; each between spaces."""
    return f" {' '.join(_WORD.findall(text[:2000])[:NUM_QUOTED_WORDS])} "


def passages_of(text: str) -> tuple[str, ...]:
    """Passages by which a text is recognised where only a part of it is quoted: its beginning, and some later ones."""
    words = _WORD.findall(_TAG.sub(" ", text[:MAX_QUOTED_LENGTH]))
    starts = [0] if len(words) < MIN_PASSAGES else [0, len(words) // 3, len(words) // 2, 2 * len(words) // 3]
    return tuple(f" {' '.join(words[start : start + NUM_QUOTED_WORDS // 2])} " for start in starts)


def call_key(call_id: str) -> str:
    """A call id as every agent brings it back."""
    return _NOT_ALPHANUMERIC.sub("", call_id)


def is_random(call_id: str) -> bool:
    """Whether a normalised id was drawn and not counted: letters and digits take turns in it."""
    changes = sum(first.isdigit() != second.isdigit() for first, second in pairwise(call_id))
    return changes >= RANDOM_CHANGES


def id_like_words(text: str) -> Iterator[str]:
    """Normalised words of a text that could be ids: they hold a digit."""
    for word in set(_ID_LIKE.findall(text)):
        if any(character.isdigit() for character in word):
            yield call_key(word)


def canonical_call(name: str, arguments: object) -> str:
    """A tool call as name and arguments in sorted order; arguments may be JSON text or already an object."""
    try:
        if isinstance(arguments, str):
            arguments = msgspec.json.decode(arguments) if arguments.strip() else {}
        return name + msgspec.json.encode(_plain_numbers(arguments or {}), order="sorted").decode()
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError):
        return name + collapse(str(arguments))


def argument_texts(arguments: object) -> list[str]:
    """Every text inside a call's arguments, collapsed, at most 32."""
    try:
        value = msgspec.json.decode(arguments) if isinstance(arguments, str) and arguments.strip() else arguments
    except (msgspec.DecodeError, RecursionError):
        value = arguments
    found: list[str] = []
    stack: list[Any] = [value]
    while stack and len(found) < 32:
        item = stack.pop()
        if isinstance(item, str):
            found.append(collapse(item))
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return [text for text in found if text]


def digest_of(*parts: bytes) -> bytes:
    """A digest of parts, each told from the next by its length."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def _plain_numbers(value: Any) -> Any:
    """Whole floats as integers: serialisers disagree about ``1.0``."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    return value
