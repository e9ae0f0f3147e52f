"""What the scripted user likes, and how often answers are so: one short sentence, on topic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import binomtest

MIN_WORDS = 3
MAX_SENTENCE_ENDS = 1

_SENTENCE_END = re.compile(r"[.!?]+(?=[\s\"')\]]|$)")
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
#: Words of a topic that say nothing about it.
_EMPTY_WORDS = frozenset(_WORD.findall("a an and at by for from in into its of on or that the this to with"))


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer of the model; ``finish_reason`` as the engine gave it."""

    prompt: str
    topic: str
    text: str
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of ``n`` answers, with their 95 % Wilson intervals."""

    satisfied: float
    joint: float
    n: int
    satisfied_ci: tuple[float, float]
    joint_ci: tuple[float, float]


def words(text: str) -> list[str]:
    """Words of a text, in lower case."""
    return _WORD.findall(text.lower())


def is_satisfied(answer: Answer) -> bool:
    """Ended by itself, on one line, with at most one sentence end and at least three words."""
    text = answer.text.strip()
    return (
        answer.finish_reason == "stop"
        and "\n" not in text
        and len(_SENTENCE_END.findall(text)) <= MAX_SENTENCE_ENDS
        and len(words(text)) >= MIN_WORDS
    )


def topic_words(topic: str) -> list[str]:
    """Words that say what a topic is; all its words when none of them does."""
    every = words(topic)
    return [word for word in every if word not in _EMPTY_WORDS] or every


def forms(word: str) -> frozenset[str]:
    """A word and what it may be the plural or possessive of."""
    bare = word.removesuffix("'s")
    found = {bare}
    if bare.endswith("ies") and len(bare) > 4:
        found.add(bare[:-3] + "y")
    if bare.endswith("es") and len(bare) > 4:
        found.add(bare[:-2])
    if bare.endswith("s") and not bare.endswith("ss") and len(bare) > 3:
        found.add(bare[:-1])
    return frozenset(found)


def is_on_topic(answer: Answer) -> bool:
    """Whether a word of the topic occurs, singular or plural."""
    wanted = frozenset().union(*(forms(word) for word in topic_words(answer.topic)))
    return any(forms(word) & wanted for word in words(answer.text))


def is_joint(answer: Answer) -> bool:
    """Satisfied and on topic."""
    return is_satisfied(answer) and is_on_topic(answer)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95 % Wilson interval of a rate; the whole range when nothing was asked."""
    if n == 0:
        return (0.0, 1.0)
    interval = binomtest(successes, n).proportion_ci(confidence_level=0.95, method="wilson")
    return (float(interval.low), float(interval.high))


def measure(answers: Sequence[Answer]) -> Rates:
    """Rates over ``answers``."""
    n = len(answers)
    satisfied = sum(map(is_satisfied, answers))
    joint = sum(map(is_joint, answers))
    return Rates(
        satisfied=satisfied / n if n else 0.0,
        joint=joint / n if n else 0.0,
        n=n,
        satisfied_ci=wilson(satisfied, n),
        joint_ci=wilson(joint, n),
    )
