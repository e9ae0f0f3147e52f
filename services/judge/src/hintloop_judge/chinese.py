"""What one clause of a Chinese message is. The English reading stands in `reading`; the kinds are the same.

Chinese parts no words and marks questions by particles, so cues are looked for in the clause as it stands. What keeps
talk about other things neutral: a complaint must be about the answer or open the clause, and an order is a direction
only when it ends in a form or in the answering itself ("use one sentence" against "describe rain in one sentence").
"""

from __future__ import annotations

import re

from hintloop_judge import chinese_patterns as p
from hintloop_judge.clauses import Clause
from hintloop_judge.kinds import Kind, Reading

_HAN = re.compile(r"[\u3400-\u9fff]")
_LATIN = re.compile(r"[a-z]+")
_NAMES_FORM = re.compile(f"{p.FORM}|{p.MORE}")
_PARTICLE = re.compile(r"(?:吗|么|呢|吧|好吗|可以吗|行吗)$")
#: A clause of more characters is no short reaction.
_MAX_CLAUSE = 80


def is_chinese(text: str) -> bool:
    """Whether a clause is written in Chinese; foreign words may stand in it."""
    return len(_HAN.findall(text)) > len(_LATIN.findall(text))


def read_chinese(clause: Clause) -> Reading:
    """Read one Chinese clause."""
    shape = clause.shape.replace(" ", "")
    kind, carries = (Kind.OTHER, False) if len(shape) > _MAX_CLAUSE else _kind(clause, shape)
    return Reading(
        clause,
        kind,
        carries=carries,
        affirms=bool(p.AFFIRM.search(shape)),
        contrasts=bool(p.CONTRAST.search(shape)),
    )


def _kind(clause: Clause, shape: str) -> tuple[Kind, bool]:
    if p.REPROACH.search(shape):
        return Kind.COMPLAINT, False
    if (clause.asked and clause.last) or p.QUESTION.search(shape):
        return _question(shape)
    if p.PLEASANTRY.search(shape):
        return Kind.PLEASANTRY, False
    approved = _approval(shape)
    if approved is not None:
        return (Kind.APPROVAL, bool(_NAMES_FORM.search(shape))) if approved else (Kind.COMPLAINT, False)
    if any(cue.search(shape) for cue in p.COMPLAIN) or p.NOT_GOOD.search(shape):
        return Kind.COMPLAINT, False
    if any(cue.search(shape) for cue in p.CORRECT):
        return Kind.CORRECTION, True
    return _direction(shape)


def _question(shape: str) -> tuple[Kind, bool]:
    """A question may be a request about the form ("could it be shorter?")."""
    rest = _PARTICLE.sub("", shape)
    polite = p.ASKS_FORM.search(rest)
    if polite is not None and _direction(rest[polite.end() :])[0] in (Kind.DIRECTION, Kind.FRAGMENT):
        return Kind.DIRECTION, True
    return Kind.QUESTION, False


def _approval(shape: str) -> bool | None:
    """True when the clause approves, false when it denies that of the answer; ``None`` for neither."""
    for cue in p.APPROVE:
        match = cue.search(shape)
        if match is None:
            continue
        before = shape[: match.start()]
        if p.NOT.search(before) is None:
            return True
        return False if p.DENIED_OF_ANSWER.search(before) else None
    return None


def _direction(shape: str) -> tuple[Kind, bool]:
    if any(cue.search(shape) for cue in p.DIRECT):
        return Kind.DIRECTION, True
    if p.TASK.search(shape):
        return Kind.TASK, False
    if p.FRAGMENT.search(shape):
        return Kind.FRAGMENT, False
    return Kind.OTHER, False
