"""Whether a hinted prompt is the captured prompt with the hint set in, and nothing else. Pure functions over ids.

A hint that holds a control token (``<|im_end|>`` and its like) would close the user's turn and speak for others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

from hintloop_teacher.errors import NoHintPlaceError, UnsafeHintError
from hintloop_teacher.splice import common_prefix, common_suffix


class Tokens(Protocol):
    """What is asked of the student's vocabulary."""

    @property
    def control_tokens(self) -> Mapping[int, str]:
        """Ids and texts of the tokens that no hint may hold."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of bare text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included."""
        ...


def check_text(text: str, tokens: Tokens) -> None:
    """Raises ``UnsafeHintError`` when ``text`` holds a control token's text."""
    found = next((control for control in tokens.control_tokens.values() if control in text), None)
    if found is not None:
        raise UnsafeHintError(f"the hint holds the tokenizer's special token {found!r}")


def check_ids(inserted_ids: Sequence[int], tokens: Tokens) -> None:
    """Raises ``UnsafeHintError`` when ids to be set in hold a control token's."""
    found = next((tokens.control_tokens[token] for token in inserted_ids if token in tokens.control_tokens), None)
    if found is not None:
        raise UnsafeHintError(f"the hint's ids hold the tokenizer's special token {found!r}")


def check_insertion(plain_ids: Sequence[int], hinted_ids: Sequence[int], tokens: Tokens, block: str) -> None:
    """Check that ``hinted_ids`` are a prefix of ``plain_ids``, ``block`` set in, and the rest of ``plain_ids``.

    Where the hint meets the text around it, tokens may merge: what is there instead must read as the plain text
    with something set in.

    Raises:
        NoHintPlaceError: they differ otherwise, or what was set in does not read as the block.
        UnsafeHintError: what is set in holds a control token.
    """
    begin = common_prefix(plain_ids, hinted_ids)
    room = min(len(plain_ids), len(hinted_ids)) - begin
    end = min(common_suffix(plain_ids, hinted_ids), room)
    replaced, inserted = plain_ids[begin : len(plain_ids) - end], hinted_ids[begin : len(hinted_ids) - end]
    check_ids([*replaced, *inserted], tokens)
    if len(hinted_ids) <= len(plain_ids):
        raise NoHintPlaceError("the template does not render the last user message")
    if replaced and not _set_in(tokens.decode(replaced), tokens.decode(inserted)):
        raise NoHintPlaceError(f"with the hint the template changes {len(replaced)} ids besides setting it in")
    if not _shown(tokens.decode(plain_ids), tokens.decode(hinted_ids), block, tokens):
        raise NoHintPlaceError("with the hint the template sets in something else than the hint")


def _shown(plain: str, hinted: str, block: str, tokens: Tokens) -> bool:
    """Whether the block stands in ``hinted`` once more than in ``plain``, as written or escaped as in JSON."""
    # As the tokenizer gives it back: it may bring characters into another form. Templates may trim its ends.
    read = tokens.decode(tokens.encode(block.strip())).strip()
    ways = {block.strip(), read, json.dumps(read)[1:-1], json.dumps(read, ensure_ascii=False)[1:-1]}
    return any(hinted.count(way) == plain.count(way) + 1 for way in ways)


def _set_in(before: str, after: str) -> bool:
    """Whether ``after`` is ``before`` with something set in at one place."""
    start = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    return len(after) > len(before) and after.endswith(before[start:])
