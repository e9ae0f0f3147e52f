"""A scripted agent that talks through the proxy with the stock client, as its user's day makes it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai

SUBJECTS = (
    *("rain", "snow", "wind", "rivers", "mountains", "bread", "clocks", "bridges", "trees", "lamps", "paper", "salt"),
    *("glass", "roads", "honey", "rice", "maps", "tea", "bells", "ships", "stones", "gardens", "bicycles", "mirrors"),
)
OPENINGS = ("What is {}?", "Tell me about {}.", "Why do people like {}?", "How is {} made or formed?")
#: What a user who does not like an answer says next; each asks for something else.
REPLIES = (
    "That is too long. Keep it short please.",
    "No. Write it as a numbered list.",
    "Please add an example with numbers.",
    "Too long again, shorter please.",
)
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Day:
    """How an agent's conversations go."""

    turns: int = 3
    replies: Sequence[str] = REPLIES
    headers: Mapping[str, str] = field(default_factory=dict)
    gap_s: float = 0.0
    """Seconds between an answer and the next request."""
    remembers: bool = True
    """Whether a request carries what was said before."""
    max_tokens: int = 16
    temperature: float = 0.7
    extra: Mapping[str, Any] = field(default_factory=dict)


async def talk(base_url: str, num: int, day: Day, timeout_s: float = 120.0) -> int:
    """Hold ``num`` conversations at once; how many requests were answered."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="agent", max_retries=0, timeout=timeout_s) as client:
        done = await asyncio.gather(*(converse(client, next(_numbers), day) for _ in range(num)))
    return sum(done)


async def converse(client: openai.AsyncOpenAI, number: int, day: Day) -> int:
    """One conversation; how many of its requests were answered."""
    subject = SUBJECTS[number % len(SUBJECTS)]
    opening = OPENINGS[number // len(SUBJECTS) % len(OPENINGS)].format(subject)
    if number >= len(SUBJECTS) * len(OPENINGS):
        opening = f"{opening} ({number})"
    messages: list[Any] = [{"role": "user", "content": opening}]
    answered = 0
    for turn in range(day.turns):
        try:
            answer = await client.chat.completions.create(
                model="policy",
                messages=messages if day.remembers else messages[-1:],
                temperature=day.temperature,
                max_tokens=day.max_tokens,
                extra_headers=dict(day.headers),
                extra_body=dict(day.extra) or None,
            )
        except openai.APIError:
            return answered
        answered += 1
        messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
        messages.append({"role": "user", "content": day.replies[turn % len(day.replies)]})
        await asyncio.sleep(day.gap_s)
    return answered
