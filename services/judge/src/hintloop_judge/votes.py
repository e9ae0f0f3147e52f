"""Reads one vote out of a judge's own completion. Never looks at the prompt; what cannot be read is a failed vote.

Repeated verdicts that agree count once; repeated ones that disagree fail. Reasoning in a leading
``<think>…</think>`` is no part of the verdict.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hintloop_contract.messages import Vote

from hintloop_judge.conversation import has_lone_surrogate
from hintloop_judge.errors import VoteError
from hintloop_judge.prompts import Question

_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_HINT = re.compile(r"\[HINT_START\](.*?)\[HINT_END\]", re.DOTALL)
_NO_HINT = "[NO_HINT]"
_THINK = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
#: Reasons for which a completion ends before its own end.
_CUT = {
    "length": "by the token limit (prm.hint_max_tokens)",
    "max_tokens": "by the token limit (prm.hint_max_tokens)",
    "content_filter": "by the engine's content filter",
    "abort": "by the engine, which gave it up",
    "error": "by an error of the engine",
}
_SCORES = {"+1": 1, "1": 1, "0": 0, "-1": -1, "\u22121": -1}


def parse_votes(question: Question, completion: dict[str, Any], num_asked: int, *, schema: bool) -> list[Vote]:
    """``num_asked`` votes from a chat completion body; one that cannot be counted has ``failed`` set to the reason."""
    choices = completion.get("choices")
    given = choices[:num_asked] if isinstance(choices, list) else []
    votes = [_parse_choice(question, choice, schema=schema) for choice in given]
    missing = "the judge's answer has no choices" if not given else f"only {len(given)} of {num_asked} choices came"
    return votes + [Vote(failed=missing)] * (num_asked - len(given))


def parse_vote(question: Question, completion: dict[str, Any], *, schema: bool) -> Vote:
    """The vote of a chat completion with one choice."""
    return parse_votes(question, completion, 1, schema=schema)[0]


def _parse_choice(question: Question, choice: Any, *, schema: bool) -> Vote:
    try:
        text = choice_text(choice)
        if question == "score":
            return Vote(score=_schema_score(text) if schema else _boxed_score(text))
        return Vote(hint=_schema_hint(text) if schema else _marked_hint(text))
    except VoteError as error:
        return Vote(failed=str(error))


def choice_text(choice: Any) -> str:
    """The judge's words in one choice.

    Raises:
        VoteError: there are none, or they were cut.
    """
    if not isinstance(choice, dict):
        raise VoteError("the judge's answer has no choices")
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason in _CUT:
        raise VoteError(f"cut {_CUT[reason]}")
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise VoteError("the judge's answer is empty")
    _check_storable(text)
    text = _THINK.sub("", text, count=1)
    if "<think>" in text:
        raise VoteError("the judge's reasoning does not end")
    return text


def _boxed_score(text: str) -> int:
    found = [item.replace(" ", "") for item in _BOXED.findall(text)]
    if not found:
        raise VoteError("no \\boxed{} in the judge's answer")
    strange = [item for item in found if item not in _SCORES]
    if strange:
        raise VoteError(f"\\boxed{{{strange[0][:20]}}} is none of +1, 0, -1")
    scores = {_SCORES[item] for item in found}
    if len(scores) > 1:
        raise VoteError("several \\boxed{} disagree")
    return scores.pop()


def _marked_hint(text: str) -> str | None:
    hints = {" ".join(item.split()) for item in _HINT.findall(text)}
    declined = _NO_HINT in text
    if not hints and not declined:
        raise VoteError("neither a hint between its markers nor [NO_HINT] in the judge's answer")
    if len(hints) > 1 or (hints and declined):
        raise VoteError("several hints, or a hint and [NO_HINT]")
    if declined:
        return None
    return hints.pop() or None


def _check_storable(text: str) -> None:
    if has_lone_surrogate(text):
        raise VoteError("the judge's answer holds half a character (a lone surrogate)")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise VoteError("the judge's answer is not the JSON that was asked") from None
    if not isinstance(value, dict):
        raise VoteError("the judge's answer is no JSON object")
    return value


def _schema_score(text: str) -> int:
    score = _object(text).get("score")
    if isinstance(score, bool) or score not in (-1, 0, 1):
        raise VoteError(f"score {str(score)[:20]!r} is none of 1, 0, -1")
    return int(score)


def _schema_hint(text: str) -> str | None:
    value = _object(text)
    if "hint" not in value:
        raise VoteError("the judge's answer has no field hint")
    hint = value["hint"]
    if hint is not None and not isinstance(hint, str):
        raise VoteError("the field hint is neither text nor null")
    if hint is None:
        return None
    _check_storable(hint)
    return " ".join(hint.split()) or None
