"""What one clause of a user's message is: a complaint, a correction, approval, a direction, a question, a new task.

Owns the reading of clauses; the judgement of a whole message is made in `rules`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hintloop_judge import rules_patterns as p
from hintloop_judge.chinese import is_chinese, read_chinese
from hintloop_judge.clauses import Clause
from hintloop_judge.kinds import Kind, Reading

_TOKEN = re.compile(r"[^\W\d_][\w'-]*")


@dataclass(frozen=True, slots=True)
class _Words:
    """Counts over a clause: form words (and weak ones), and words about anything else."""

    num_form: int
    num_weak: int
    num_topic: int

    @property
    def about_form(self) -> bool:
        return self.num_form > 0 or self.num_weak > 1

    @property
    def names_form(self) -> bool:
        return self.num_form + self.num_weak > 0


def read_clause(clause: Clause) -> Reading:
    """Read one clause."""
    shape = clause.shape
    if is_chinese(shape):
        return read_chinese(clause)
    body = _stripped(shape)
    kind, carries = _kind(clause, body)
    return Reading(
        clause,
        kind,
        carries=carries,
        affirms=bool(p.AFFIRM.search(shape)),
        contrasts=bool(p.CONTRAST.search(shape)) or bool(re.search(r"\bnext time\b|\binstead\b", shape)),
    )


def _kind(clause: Clause, body: str) -> tuple[Kind, bool]:
    shape = clause.shape
    counted = count_words(body)
    if p.POLITE_NO.search(shape):
        return Kind.PLEASANTRY, False
    if is_question(clause, body):
        return _question(body, counted)
    if _is_task(body, counted):
        return Kind.TASK, False
    approval = _approval(shape, body, counted)
    if approval is not None:
        approved, rest = approval
        if not approved:
            return Kind.COMPLAINT, False
        if not any(cue.search(rest) for cue in p.CORRECT):
            return Kind.APPROVAL, _approved_form(counted)
    correction = _correction(shape, body, counted)
    if correction is not None:
        return correction
    if p.PLEASANTRY.search(shape) and not counted.names_form:
        return Kind.PLEASANTRY, False
    return _direction(shape, body, counted)


def _stripped(shape: str) -> str:
    match = p.OPENER.match(shape)
    rest = shape[match.end() :].strip() if match else shape
    return rest or shape


def count_words(body: str) -> _Words:
    """Count a clause's words by what they are about."""
    form = weak = topic = 0
    for word in _TOKEN.findall(body):
        base = word.removesuffix("'s")
        if base in p.WEAK_FORM:
            weak += 1
        elif base in p.FORM:
            form += 1
        elif not _is_function(word, base):
            topic += 1
    return _Words(form, weak, topic)


def _is_function(word: str, base: str) -> bool:
    return word in p.FUNCTION or base in p.FUNCTION or word in p.ANSWER or base in p.ANSWER


def is_question(clause: Clause, body: str) -> bool:
    """Whether the clause asks: it begins like a question, or it closes a sentence that asks."""
    if p.RELATIVE.search(body):
        return False
    if p.WH_START.search(body):
        return True
    if not clause.asked:
        return bool(p.REQUEST_QUESTION.search(body))
    return clause.last or bool(p.QUESTION_START.search(body))


def _question(body: str, counted: _Words) -> tuple[Kind, bool]:
    """A question may be a request about the form ("could you make it shorter?") or a reproach ("why so long?")."""
    if p.REQUEST_QUESTION.search(body) and counted.names_form and not p.WH_START.search(body):
        rest = re.sub(p.REQUEST_QUESTION, "", body).strip()
        rest = re.sub(r"^(?:please|just|also|kindly|maybe)\s+", "", rest)
        if _shapes_answer(rest, counted):
            return Kind.DIRECTION, True
    if p.WHY_COMPLAINT.search(body) and counted.num_topic == 0 and (counted.names_form or "you" in body.split()):
        return Kind.COMPLAINT, False
    short = counted.num_topic == 0 and counted.about_form
    if short and p.SHORT_REQUEST.search(body):
        return Kind.DIRECTION, True
    return Kind.QUESTION, False


def _shapes_answer(rest: str, counted: _Words) -> bool:
    """The request's object is the answer's form and nothing else."""
    if counted.num_topic == 0:
        return True
    refers = p.ANSWER_OBJECT.search(rest)
    style = p.STYLE_IMPERATIVE.search(rest) is not None
    content = p.CONTENT_IMPERATIVE.search(rest) is not None
    return counted.num_topic <= 1 and bool(refers or (style and not content))


def _is_task(body: str, counted: _Words) -> bool:
    """An order for new content: a content verb whose object is a topic, or a turn to another subject."""
    strong = any(cue.search(body) for cue in p.CORRECT)
    if strong:
        return False
    if p.TASK_OBJECT.search(body):
        return p.CONTENT_IMPERATIVE.search(body) is not None
    if p.NEW_SUBJECT.search(body) and counted.num_topic >= 1 and not counted.about_form:
        return True
    if p.CONTENT_IMPERATIVE.search(body) is None:
        return False
    if counted.num_topic == 0:
        return not counted.names_form
    refers = p.ANSWER_OBJECT.search(body)
    style_only = p.STYLE_IMPERATIVE.search(body) is not None and counted.num_topic == 1 and counted.num_form > 0
    of_topic = re.search(r"\b(?:about|of|on|for|why|how|what|who|where|when|between)\b", body) is not None
    return not (refers and counted.names_form) and (not style_only or of_topic)


def _approval(shape: str, body: str, counted: _Words) -> tuple[bool, str] | None:
    """``(approves, the rest of the clause)``; false when the approval is negated, a complaint; ``None``: neither."""
    limit = 3 if counted.names_form else 2
    if counted.num_topic > limit:
        return None
    for cue in (*p.APPROVE, *(p.APPROVE_FORM if counted.names_form else ())):
        for text in (shape, body):
            match = cue.search(text)
            if match is None:
                continue
            inside = re.search(r"\b(?:not|isn't|wasn't|never)\b", match.group())
            negated = p.NEGATION.search(text[: match.start()]) or inside
            return not negated, text[: match.start()] + text[match.end() :]
    return None


def _approved_form(counted: _Words) -> bool:
    """Approval that itself names a form carries it: "I love the short answers", "keep it this short"."""
    return counted.about_form or (counted.num_weak > 0 and counted.num_topic == 0)


def _correction(shape: str, body: str, counted: _Words) -> tuple[Kind, bool] | None:
    if counted.num_topic <= 5 or p.NO_OPENER.search(shape):
        refers = counted.names_form or p.REFERS.search(body)
        for cue in (*p.CORRECT, *(p.CORRECT_FORM if refers else ())):
            if cue.search(body) or cue.search(shape):
                return Kind.CORRECTION, True
    if p.NO_OPENER.search(shape) and re.search(r"^(?:it|that|this|he|she|they|the)\b|^(?:use|try|make|do)\b", body):
        return Kind.CORRECTION, True
    for cue in p.COMPLAIN:
        match = cue.search(body)
        if match is None:
            continue
        if count_words(body[: match.start()] + body[match.end() :]).num_topic > 1:
            continue
        if p.NEGATION.search(body[: match.start()]):
            return Kind.APPROVAL, counted.names_form
        # "Too long please use one sentence": the clause says what to do as well.
        told = _direction(shape, body[match.end() :].strip(), count_words(body[match.end() :]))
        return Kind.COMPLAINT, told[1] and told[0] is Kind.DIRECTION
    return None


def _direction(shape: str, body: str, counted: _Words) -> tuple[Kind, bool]:
    """A direction or wish about form, a bare fragment of form, or neither."""
    if not counted.names_form or not body:
        return Kind.OTHER, False
    wished = any(cue.search(shape) for cue in p.PREFER)
    wished = wished or (counted.num_topic == 0 and any(cue.search(shape) for cue in p.WISH))
    ordered = p.STYLE_IMPERATIVE.search(body) is not None
    if counted.num_topic <= 1 and (ordered or wished) and (counted.about_form or counted.num_topic == 0):
        return Kind.DIRECTION, True
    if counted.num_topic == 0 and len(body.split()) <= 9:
        return Kind.FRAGMENT, False
    return Kind.OTHER, False
