"""Built-in exchanges for the judge: a request, an answer, what followed, and what a person would say to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Triple:
    """A request, an answer, what followed; and what a person would say to it."""

    name: str
    request: str
    answer: str
    reaction: dict[str, Any]
    score: int
    hinted: bool
    about: tuple[str, ...] = field(default=())
    """Words of which a concrete hint has one."""


TRIPLES = (
    Triple(
        "complaint",
        "What is a comet?",
        "A comet is an icy body that orbits the Sun. It has a nucleus, a coma and often two tails. Many come from the "
        "Oort cloud, far beyond Neptune, and return after thousands of years.",
        {"role": "user", "content": "Too long. Please answer in one short sentence."},
        score=-1,
        hinted=True,
        about=("short", "sentence", "brief", "concise"),
    ),
    Triple(
        "correction",
        "Convert 3 miles to kilometres.",
        "3 miles are 4.2 kilometres.",
        {"role": "user", "content": "That's wrong: multiply by 1.609 instead of 1.4."},
        score=-1,
        hinted=True,
        about=("1.609", "multiply", "factor", "convert", "kilomet"),
    ),
    Triple(
        "praise",
        "Name the capital of Norway.",
        "Oslo.",
        {"role": "user", "content": "Perfect, thank you. That is exactly what I needed."},
        score=1,
        hinted=False,
    ),
)
