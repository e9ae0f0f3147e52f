"""The rules backend: reads corrections, confirmations and tool outcomes without any model. Deterministic.

Score: -1 for a correction, a complaint or a failed tool; +1 for a confirmation or a tool that says it succeeded;
0 when the conversation goes on without either; ``None`` when there is nothing to judge. The user's words outweigh
the tools'. The hint is the preference or correction in the user's own words: the clauses that carry it, without
greetings, thanks and the next question. English and Chinese.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, pairwise
from typing import Any

from hintloop_contract.config.judging import RulesSection
from hintloop_contract.config.schema import OpdSection
from hintloop_contract.messages import Judgement, Vote

from hintloop_judge import rules_patterns as p
from hintloop_judge.backends import Opinion
from hintloop_judge.chinese import is_chinese
from hintloop_judge.clauses import split_clauses
from hintloop_judge.conversation import (
    TOOL_ROLES,
    Exchange,
    Message,
    call_names,
    is_result_part,
    tool_name,
    tool_results,
    user_texts,
)
from hintloop_judge.kinds import Kind, Reading
from hintloop_judge.reading import read_clause
from hintloop_judge.selection import hint_problem
from hintloop_judge.tool_rules import rules_of, tool_score

BACKEND = "rules"


class _Mood(StrEnum):
    COMPLAINT = "complaint"
    APPROVAL = "approval"
    NEUTRAL = "neutral"


#: What may stand before a hint that is too short by itself.
_WIDENING = (Kind.COMPLAINT, Kind.CORRECTION, Kind.DIRECTION, Kind.FRAGMENT, Kind.OTHER)

#: Of a text this many times as long as the longest hint, politeness and blanks leave no hint.
_MOST_AROUND = 8


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one text says: ``score`` in {+1, 0, -1} and the hint it carries, of any length, or ``None``."""

    score: int
    hint: str | None = None


class RulesBackend:
    """Judges by :mod:`hintloop_judge.rules_patterns`; needs no engine."""

    name = BACKEND
    model: str | None = None

    def __init__(self, section: OpdSection, rules: RulesSection | None = None) -> None:
        """``section`` bounds the hints; ``rules`` says how single tools are read."""
        self._section = section
        self._rules = rules or RulesSection()

    def describe(self) -> dict[str, Any]:
        """What ``GET /v1/prm`` shows of it."""
        return {"backend": self.name, "model": None, "tools": sorted(self._rules.tools)}

    def without_ignored(self, exchange: Exchange) -> Exchange:
        """The exchange without the output of tools that are to be ignored."""
        names = call_names(exchange.answer)
        if not any(rules.ignore for rules in self._rules.tools.values()):
            return exchange
        left = tuple(kept for m in exchange.next_state if (kept := self._left(m, names)) is not None)
        return replace(exchange, next_state=left)

    def _left(self, message: Message, names: dict[str, str]) -> Message | None:
        if message.get("role") in TOOL_ROLES:
            return None if self._ignored(message, names) else message
        content = message.get("content")
        if not isinstance(content, list):
            return message
        kept = [part for part in content if not (is_result_part(part) and self._ignored(part, names))]
        return {**message, "content": kept} if kept else None

    def _ignored(self, part: dict[str, Any], names: dict[str, str]) -> bool:
        rules = rules_of(tool_name(part, names), self._rules)
        return rules is not None and rules.ignore

    async def judge(self, exchange: Exchange, *, score: bool, hint: bool) -> Opinion:
        """Opinion on one exchange; both questions are answered at no cost, ``hint`` false leaves hints out."""
        # A tool's output may be long, and the loop has other turns to serve.
        found_score, found_hint = await asyncio.to_thread(judge_next_state, exchange, self._section, self._rules)
        kept = found_hint if hint and self._section.enable_hint_extraction else None
        vote = Vote(score=found_score, hint=kept)
        return Opinion(Judgement(score=found_score, hint=kept, votes=(vote,), backend=self.name))

    async def ready(self) -> bool:
        """Always: nothing is depended on."""
        return True

    async def close(self) -> None:
        """Nothing to close."""


def judge_next_state(
    exchange: Exchange, section: OpdSection, rules: RulesSection | None = None
) -> tuple[int | None, str | None]:
    """``(score, hint)`` of the whole next state."""
    verdicts = [read_text(text, section) for text in user_texts(exchange.next_state)]
    hints = [verdict.hint for verdict in verdicts if verdict.hint]
    scores = [verdict.score for verdict in verdicts if verdict.score]
    if scores:
        return (-1 if -1 in scores else 1), (hints[-1] if hints else None)
    results = tool_results(exchange.next_state, call_names(exchange.answer))
    tools = tool_score(results, rules)
    if tools is not None:
        return tools, (hints[-1] if hints else None)
    if verdicts and not results:
        return 0, (hints[-1] if hints else None)
    return None, None


def read_text(text: str, section: OpdSection) -> Verdict:
    """Score and hint of one user message."""
    clauses = split_clauses(text)
    readings = [read_clause(clause) for clause in clauses]
    _settle_contradictions(readings)
    mood = _mood(readings, text)
    directed = _settle_fragments(readings, mood)
    score = _score(readings, mood, directed)
    if score == 0:
        return Verdict(0)
    return Verdict(score, _hint(text, readings, section))


def _mood(readings: list[Reading], text: str) -> _Mood:
    kinds = {reading.kind for reading in readings}
    if kinds & {Kind.COMPLAINT, Kind.CORRECTION} or p.EMOJI_COMPLAIN.search(text):
        return _Mood.COMPLAINT
    if Kind.APPROVAL in kinds or p.EMOJI_APPROVE.search(text):
        return _Mood.APPROVAL
    return _Mood.NEUTRAL


def _settle_contradictions(readings: list[Reading]) -> None:
    """A statement that the next clause sets against what was said ("it's blue, not green") is a correction."""
    for first, second in pairwise(readings):
        plain = first.kind is Kind.OTHER and second.kind in (Kind.OTHER, Kind.FRAGMENT) and first.next_to(second)
        plain = plain and not first.clause.asked
        one, other = first.clause.shape, second.clause.shape
        denied = p.ASSERTS.search(one) and p.DENIES.search(other)
        replaced = p.DENIED.search(one) and p.REPLACES.search(other)
        if plain and (denied or replaced):
            for reading in (first, second):
                reading.kind, reading.carries = Kind.CORRECTION, True


def _settle_fragments(readings: list[Reading], mood: _Mood) -> bool:
    """Decide what bare fragments of form are; true when the message directs or confirms a form anywhere."""
    affirmed = bool(readings) and readings[0].affirms
    directed = any(reading.kind is Kind.DIRECTION for reading in readings)
    requested = {reading.clause.sentence for reading in readings if p.PLEASE.search(reading.clause.shape)}
    for index, reading in enumerate(readings):
        if reading.kind is not Kind.FRAGMENT:
            continue
        following = readings[index + 1] if index + 1 < len(readings) else None
        frames_question = (
            following is not None
            and following.kind in (Kind.QUESTION, Kind.TASK)
            and following.clause.sentence == reading.clause.sentence
        )
        if frames_question or (mood is _Mood.NEUTRAL and not affirmed and not directed):
            asked = reading.clause.sentence in requested and not frames_question
            reading.kind = Kind.DIRECTION if asked else Kind.OTHER
            reading.carries = asked
            directed = directed or asked
        else:
            reading.carries = True
    return directed


def _score(readings: list[Reading], mood: _Mood, directed: bool) -> int:
    if mood is _Mood.COMPLAINT:
        return -1
    if mood is _Mood.APPROVAL:
        contrasted = any(reading.contrasts and reading.kind in (Kind.DIRECTION, Kind.FRAGMENT) for reading in readings)
        return -1 if contrasted else 1
    if directed:
        return -1
    # "Yes, one short sentence": an affirmed form is a confirmation.
    return 1 if any(reading.kind is Kind.FRAGMENT and reading.carries for reading in readings) else 0


def _hint(text: str, readings: list[Reading], section: OpdSection) -> str | None:
    runs = _runs(readings, lambda reading: reading.carries)
    if not runs:
        runs = _runs(readings, lambda reading: reading.kind is Kind.COMPLAINT)
    longest = _MOST_AROUND * section.max_hint_length
    short = [run for run in runs if run[-1].clause.end - run[0].clause.start <= longest]
    pieces = [piece for run in short if (piece := _spoken(text, run))]
    if len(short) == len(runs) and _fits(joined := " ".join(pieces), section):
        return joined
    # A very short wish counts with its politeness: the words are the user's either way.
    verbatim = (_sentence(text[run[0].clause.start : _polite_end(readings, run)]) for run in short)
    # So do few words with what they answer: in Chinese a whole wish may have five characters.
    widened = (_spoken(text, wide) for run in short if (wide := _widened(readings, run, longest)))
    candidates = chain(sorted(pieces, key=len, reverse=True), verbatim, widened)
    return next((candidate for candidate in candidates if _fits(candidate, section)), None)


def _fits(hint: str, section: OpdSection) -> bool:
    return hint_problem(hint, "", section) is None


def _polite_end(readings: list[Reading], run: list[Reading]) -> int:
    """Where the run ends, with the politeness that follows it in its sentence."""
    last = run[-1].clause.number
    following = readings[last + 1 : last + 2]
    if following and following[0].kind is Kind.PLEASANTRY and run[-1].next_to(following[0]):
        return following[0].clause.end
    return run[-1].clause.end


def _widened(readings: list[Reading], run: list[Reading], longest: int) -> list[Reading]:
    """The run with the clauses of its sentence that stand before it, but for questions and orders.

    Empty when it would have more than ``longest`` characters.
    """
    first = run[0].clause.number
    start, end = first, run[-1].clause.end
    while start > 0 and readings[start - 1].next_to(run[0]) and readings[start - 1].kind in _WIDENING:
        start -= 1
        if end - readings[start].clause.start > longest:
            return []
    return [*readings[start:first], *run]


def _runs(readings: list[Reading], starts: Callable[[Reading], bool]) -> list[list[Reading]]:
    """Runs of neighbouring clauses of one sentence that belong to a hint: a carrier and what continues it."""
    runs: list[list[Reading]] = []
    for reading in readings:
        open_run = runs[-1] if runs and runs[-1][-1].next_to(reading) else None
        if starts(reading):
            if open_run is not None:
                open_run.append(reading)
            else:
                runs.append([reading])
        elif open_run is not None and reading.continues:
            open_run.append(reading)
    return runs


def _spoken(text: str, run: list[Reading]) -> str:
    """The run's words without what is only polite, begun with a capital and closed with a stop."""
    start, end = run[0].clause.start, run[-1].clause.end
    words = _without_openers(text[start:end].strip(" \t\n,;:-–—()\uff0c\uff1b\uff1a、"))
    words = p.TRAILING.sub("", words).strip(" \t\n,;:-–—(")
    if words.count(")") > words.count("("):
        words = words.rstrip(")")
    return _sentence(words)


def _sentence(words: str) -> str:
    words = " ".join(words.split())
    if not words:
        return ""
    words = words[0].upper() + words[1:]
    if words[-1] in ".!?…\"'`。\uff01\uff1f”":
        return words
    return words + ("。" if is_chinese(words) else ".")


def _without_openers(words: str) -> str:
    match = p.OPENER.match(words.lower().replace("’", "'"))
    rest = words[match.end() :] if match else words
    return rest if rest.strip() else words
