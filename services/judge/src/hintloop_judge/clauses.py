"""Cuts a user's message into sentences and clauses, as spans of the original text. No meaning is read here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hintloop_judge.rules_patterns import ABBREVIATION, CLAUSE_BREAK, INJECTED

_SENTENCE_END = re.compile(r"[.!?…]+[\"')\]]*(?=\s|$)|\n+|(?<=[.!?])(?=[A-Z])|[。\uff01\uff1f…]+[\"')\]”’」』\uff09]*")
_QUOTED = re.compile(r"\"[^\"\n]*\"|“[^”\n]*”|«[^»\n]*»|`[^`\n]+`|(?<![\w'])'[^'\n]+'(?!\w)")

#: What may stand around the words of a clause, full-width marks too.
_EDGES = " \t\n.,;:!?…-–—\"'()。、~\uff01\uff1f\uff0c\uff1b\uff1a\uff08\uff09\uff5e"

#: A wide gap parts sentences: patterns that step over blanks would take quadratic time within one.
_GAP = re.compile(r"[^\S\n]{200,}")
#: Characters before a stop in which an abbreviation is looked for.
_ABBREVIATED = 16


@dataclass(frozen=True, slots=True)
class Clause:
    """``text[start:end]`` is the clause; ``shape`` is it in lower case with quotations blanked out."""

    start: int
    end: int
    shape: str
    sentence: int
    asked: bool
    """Its sentence ends with a question mark."""
    last: bool
    """It is the last of its sentence."""
    number: int
    """Its place among the message's clauses, from 0."""


def visible(text: str) -> str:
    """The text with what the user did not write in person blanked out; same length."""
    straight = text.replace("’", "'").replace("‘", "'")
    parts, done = [], 0
    for start, end in _injected(straight):
        parts += [straight[done:start], re.sub(r"[^\n]", " ", straight[start:end])]
        done = end
    shown = "".join([*parts, straight[done:]])
    return _GAP.sub(lambda match: "\n" * len(match.group()), shown)


def _injected(text: str) -> Iterator[tuple[int, int]]:
    """Spans of what others wrote. A block that is never closed is none."""
    unclosed: set[str] = set()
    begin = INJECTED.search(text)
    while begin is not None:
        end = begin.end()
        if not begin.group().startswith(">"):
            closing = f"</{tag}>" if (tag := begin["tag"]) else "```"
            key = closing.lower()
            found = None if key in unclosed else re.compile(re.escape(closing), re.IGNORECASE).search(text, end)
            if found is None:
                # Looked for once only: a text of many openings would take quadratic time.
                unclosed.add(key)
                begin = INJECTED.search(text, end)
                continue
            end = found.end()
        yield begin.start(), end
        begin = INJECTED.search(text, end)


def split_clauses(text: str) -> list[Clause]:
    """Clauses of ``text`` in order."""
    shown = visible(text)
    shape = _shape(shown)
    clauses: list[Clause] = []
    for index, (start, end) in enumerate(_sentences(shown, shape)):
        asked = any(mark in shown[start:end].rstrip("\"')] ")[-3:] for mark in "?\uff1f")
        spans = _clause_spans(shape, start, end)
        for position, (left, right) in enumerate(spans):
            body = " ".join(shape[left:right].strip(_EDGES).split())
            clauses.append(Clause(left, right, body, index, asked, position == len(spans) - 1, len(clauses)))
    return clauses


def _shape(shown: str) -> str:
    """Lower case of the same length, quotations replaced by ``q`` and blanks."""
    lowered = "".join(low if len(low := char.lower()) == 1 else char for char in shown)
    return _QUOTED.sub(lambda match: ("q" + " " * len(match.group()))[: len(match.group())], lowered)


def _sentences(shown: str, shape: str) -> list[tuple[int, int]]:
    spans = []
    start = 0
    for match in _SENTENCE_END.finditer(shape):
        if ABBREVIATION.search(shape, max(start, match.start() - _ABBREVIATED), match.start() + 1):
            continue
        end = match.start() if match.group().startswith("\n") else match.end()
        if shown[start:end].strip():
            spans.append((start, end))
        start = match.end()
    if shown[start:].strip():
        spans.append((start, len(shown)))
    return spans


def _clause_spans(shape: str, start: int, end: int) -> list[tuple[int, int]]:
    spans = []
    left = start
    for match in CLAUSE_BREAK.finditer(shape, start, end):
        spans.append((left, match.start()))
        left = match.end()
    spans.append((left, end))
    return [(a, b) for a, b in spans if re.search(r"\w|[^\x00-\x7f]", shape[a:b])]
