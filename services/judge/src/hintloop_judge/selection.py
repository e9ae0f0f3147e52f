"""From votes to a judgement: majority of scores, choice of a hint, quorum. Pure functions.

A failed vote never counts as neutral; a tie of scores is 0. A hint stands when more votes offer one than
decline, and the longest acceptable one is taken (the first of equally long ones): it says most.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from hintloop_contract.config.schema import OpdSection
from hintloop_contract.messages import Vote

from hintloop_judge.rules_patterns import words

#: A hint made of these words alone tells the teacher nothing.
GENERIC_WORDS = words(
    """a an and answer answers be better best can careful carefully could do good great harder improve improved
    improvement it job just make me more much must need needs next nicer please provide quality reply response
    should so that the this time to try very was were with you your correct correctly right properly hint none
    helpful well again give is of in no yes ok okay fix wrong bad not"""
)
#: How chat templates write their control tokens. The teacher checks a hint against the tokenizer's own.
CONTROL_TOKEN = re.compile(
    r"<[|｜][^<>]{1,40}[|｜]>|</?s>|</?(?:think|tool_call|tool_response|tools|bos|eos|pad|unk|mask)>|"
    r"<(?:start|end)_of_\w+>|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|<</?SYS>>"
)
_WORD = re.compile(r"[\w']+")


def has_quorum(votes: Sequence[Vote], quorum: float) -> bool:
    """Whether at least a ``quorum`` share of the votes succeeded."""
    succeeded = sum(vote.failed is None for vote in votes)
    return succeeded > 0 and succeeded >= quorum * len(votes)


def majority_score(votes: Sequence[Vote]) -> int | None:
    """Most frequent score of the votes that succeeded; 0 on a tie, ``None`` without any."""
    counts = Counter(vote.score for vote in votes if vote.failed is None and vote.score is not None)
    if not counts:
        return None
    ranked = counts.most_common()
    if len(ranked) > 1 and ranked[0][1] == ranked[1][1]:
        return 0
    return ranked[0][0]


def hint_problem(hint: str, answer: str, section: OpdSection) -> str | None:
    """Why a hint cannot be used, or ``None``.

    ``control_token`` (written like a chat template's), ``too_short``, ``too_long``, ``generic``, ``quotes_answer``.
    """
    if CONTROL_TOKEN.search(hint):
        return "control_token"
    if len(hint) < section.min_hint_length:
        return "too_short"
    if len(hint) > section.max_hint_length:
        return "too_long"
    words = _words(hint)
    if not set(words) - GENERIC_WORDS:
        return "generic"
    if answer and _quotes(words, _words(answer)):
        return "quotes_answer"
    return None


def select_hint(votes: Sequence[Vote], answer: str, section: OpdSection) -> tuple[str | None, Counter[str]]:
    """The hint that stands, if any, and why others were rejected."""
    rejected: Counter[str] = Counter()
    accepted: list[str] = []
    num_offered = num_declined = 0
    for vote in votes:
        if vote.failed is not None:
            continue
        if vote.hint is None:
            num_declined += 1
            continue
        num_offered += 1
        problem = hint_problem(vote.hint, answer, section)
        if problem is None:
            accepted.append(vote.hint)
        else:
            rejected[problem] += 1
    if not accepted or num_offered <= num_declined:
        return None, rejected
    return max(accepted, key=len), rejected


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _quotes(hint: list[str], answer: list[str], run: int = 8) -> bool:
    """Whether the hint gives the answer away: it lies in it, or they share ``run`` words in a row."""
    length = min(run, len(hint))
    if length < 4:
        return False
    runs = {tuple(answer[i : i + length]) for i in range(len(answer) - length + 1)}
    return any(tuple(hint[i : i + length]) in runs for i in range(len(hint) - length + 1))
