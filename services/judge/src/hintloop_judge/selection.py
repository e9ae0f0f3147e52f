"""From votes to a judgement: majority of scores, choice of a hint, quorum. Pure functions.

A failed vote never counts as neutral; a tie of scores is 0. A hint stands when more votes offer one than
decline; which of the acceptable ones is taken says ``opd.hint_selection`` (the first of equally good ones).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

from hintloop_contract.config.schema import OpdSection
from hintloop_contract.messages import Vote

from hintloop_judge.conversation import has_lone_surrogate
from hintloop_judge.rules_patterns import words

#: A hint made of these words alone tells the teacher nothing.
GENERIC_WORDS = words(
    """a an and answer answers be better best can careful carefully could do good great harder improve improved
    improvement it job just make me more much must need needs next nicer please provide quality reply response
    should so that the this time to try very was were with you your correct correctly right properly hint none
    helpful well again give is of in no yes ok okay fix wrong bad not
    请 請 更 好 回 答 案 复 復 改 进 進 善 提 高 认 真 仔 细 一 点 些 做 得 的 地 再 次 下 试 给 我 你 您 应
    该 要 需 能 可 以 努 力 重 新 正 确 质 量 错 误 了 吧 不 是 很 式 有 帮 助 写 说 把 来"""
)
#: How chat templates write their control tokens. The teacher checks a hint against the tokenizer's own.
CONTROL_TOKEN = re.compile(
    r"<[|｜][^<>]{1,40}[|｜]>|</?s>|</?(?:think|tool_call|tool_response|tools|bos|eos|pad|unk|mask)>|"
    r"<(?:start|end)_of_\w+>|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|<</?SYS>>"
)
#: A word; in Chinese, which parts none, every character counts as one.
_WORD = re.compile(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff](?:[^\W\u3400-\u9fff]|')*")
#: An answer of no more words than this is given away by repeating all of it.
_SHORT_ANSWER = 8


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

    ``control_token`` (written like a chat template's), ``broken`` (half a character), ``too_short``, ``too_long``,
    ``generic``, ``quotes_answer``.
    """
    if has_lone_surrogate(hint):
        return "broken"
    if CONTROL_TOKEN.search(hint):
        return "control_token"
    if len(hint) < section.min_hint_length:
        return "too_short"
    if len(hint) > section.max_hint_length:
        return "too_long"
    words = _words(hint)
    if not set(words) - GENERIC_WORDS:
        return "generic"
    if answer and not section.allow_quoted_hints and _quotes(words, _words(answer)):
        return "quotes_answer"
    return None


def select_hint(votes: Sequence[Vote], answer: str, section: OpdSection) -> tuple[str | None, Counter[str]]:
    """The hint that stands, if any, and why others were rejected (repeated ones count as ``repeated``)."""
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
    distinct: dict[tuple[str, ...], str] = {}
    for hint in accepted:
        distinct.setdefault(tuple(_words(hint)), hint)
    if repeated := len(accepted) - len(distinct):
        rejected["repeated"] = repeated
    if not accepted or num_offered <= num_declined:
        return None, rejected
    return _chosen(list(distinct.values()), accepted, section.hint_selection), rejected


def _chosen(distinct: Sequence[str], accepted: Sequence[str], by: str) -> str:
    if by == "shortest":
        return min(distinct, key=len)
    if by == "longest":
        return max(distinct, key=len)
    return max(distinct, key=lambda hint: sum(_alikeness(hint, other) for other in accepted))


def _alikeness(one: str, other: str) -> float:
    """Share of words in common order, 0 to 1. A hint that several votes gave is like each of them."""
    return SequenceMatcher(None, _words(one), _words(other), autojunk=False).ratio()


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _quotes(hint: list[str], answer: list[str], run: int = 8) -> bool:
    """Whether the hint gives the answer away: it lies in it, they share ``run`` words, or it says little else."""
    said, meant = ([word for word in words if word not in GENERIC_WORDS] for words in (hint, answer))
    if said == meant and len(answer) <= _SHORT_ANSWER:
        return True
    length = min(run, len(hint))
    if length < 4:
        return False
    runs = {tuple(answer[i : i + length]) for i in range(len(answer) - length + 1)}
    return any(tuple(hint[i : i + length]) in runs for i in range(len(hint) - length + 1))
