"""Finds the end of the last user (or tool) message in prompt ids by the template's own markers. Pure functions.

Legend: header = ids right before a user's content; closing = ids right after it, to the end of the user's turn;
tail = closing and the generation prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hintloop_teacher.errors import NoHintPlaceError


@dataclass(frozen=True, slots=True)
class Markers:
    """A template's ids around a user's content."""

    header: tuple[int, ...]
    closing: tuple[int, ...]
    tail: tuple[int, ...]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))


def common_suffix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common suffix."""
    return common_prefix(a[::-1], b[::-1])


def find_markers(
    asked: tuple[list[int], list[int]], closed: tuple[list[int], list[int]], continued: tuple[list[int], list[int]]
) -> Markers:
    """Markers from renderings that differ in one user content alone.

    Args:
        asked: one user message, with the generation prompt.
        closed: the same without the generation prompt.
        continued: a user message, an answer, and the user message that differs.

    Raises:
        NoHintPlaceError: the template sets nothing around a user's content.
    """
    tail = tuple(asked[0][len(asked[0]) - common_suffix(*asked) :])
    closing = tuple(closed[0][len(closed[0]) - common_suffix(*closed) :])
    first = asked[0][: common_prefix(*asked)]
    later = continued[0][: common_prefix(*continued)]
    header = tuple(first[len(first) - common_suffix(first, later) :])
    if not header or not closing or tail[: len(closing)] != closing:
        raise NoHintPlaceError("the chat template sets no marker before or after a user's content")
    return Markers(header, closing, tail)


def occurrences(ids: Sequence[int], marker: Sequence[int], start: int = 0) -> list[int]:
    """Where ``marker`` begins in ``ids``, from ``start``."""
    width = len(marker)
    pattern = list(marker)
    return [i for i in range(start, len(ids) - width + 1) if list(ids[i : i + width]) == pattern]


def end_of_last(ids: Sequence[int], markers: Markers, *, num_blocks: int | None, is_last: bool) -> int:
    """Index in ``ids`` right behind the last content between ``markers``: the last user's, or the last tool's.

    Args:
        ids: prompt ids as served.
        markers: of that role, in the template that made the ids.
        num_blocks: messages of that role in the request, or ``None`` when they cannot be counted.
        is_last: the request's last message is of that role.

    Raises:
        NoHintPlaceError: the place is not unambiguous.
    """
    headers = occurrences(ids, markers.header)
    if not headers:
        raise NoHintPlaceError("the template's marker before such a message is not in the prompt ids")
    if num_blocks is not None and len(headers) != num_blocks:
        raise NoHintPlaceError(f"the marker stands {len(headers)} times in the prompt ids of {num_blocks} messages")
    begin = headers[-1] + len(markers.header)
    ends = occurrences(ids, markers.closing, begin)
    if not ends:
        raise NoHintPlaceError("the last such message is not closed by the template's marker")
    if is_last:
        place = len(ids) - len(markers.tail)
        if tuple(ids[place:]) != markers.tail or ends[0] != place:
            raise NoHintPlaceError("the prompt ids do not end as the template ends such a turn")
        return place
    return ends[0]
