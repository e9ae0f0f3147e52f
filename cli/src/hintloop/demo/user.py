"""The scripted user: asks, reads, and says in its next message whether it liked the answer.

It talks through the stock OpenAI client and adds nothing to its requests that another client would not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai

from hintloop.demo.preference import Answer, is_satisfied
from hintloop.demo.prompts import Question, Wordings

TEMPERATURE = 0.7
MAX_TOKENS = 48
#: The reply to the feedback is only glanced at.
MAX_REPLY_TOKENS = 16


@dataclass(slots=True)
class Ledger:
    """Every request that was sent, and those that were not answered."""

    requests: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)

    def refuse(self, error: Exception) -> None:
        """Count a request that got no full answer."""
        self.refused += 1
        self.reasons.append(f"{type(error).__name__}: {error}"[:300])


class Conversations:
    """Talks to the proxy as an application would."""

    def __init__(self, base_url: str, model: str, wordings: Wordings, rng: random.Random, ledger: Ledger) -> None:
        # A retry would hide a refused request.
        self.client = openai.AsyncOpenAI(base_url=base_url, api_key="demo", max_retries=0, timeout=180.0)
        self.model = model
        self.wordings = wordings
        self.rng = rng
        self.ledger = ledger

    async def ask(
        self,
        question: Question,
        messages: Sequence[Mapping[str, str]] = (),
        *,
        max_tokens: int = MAX_TOKENS,
        headers: Mapping[str, str] | None = None,
    ) -> Answer | None:
        """Stream one answer to ``messages`` (the bare question when empty); ``None`` when it was refused."""
        conversation: Any = list(messages) or [{"role": "user", "content": question.prompt}]
        self.ledger.requests += 1
        parts: list[str] = []
        finish_reason: str | None = None
        try:
            stream = await self.client.chat.completions.create(
                model=self.model,
                messages=conversation,
                stream=True,
                temperature=TEMPERATURE,
                max_tokens=max_tokens,
                extra_headers=dict(headers) if headers else None,
            )
            async for chunk in stream:
                for choice in chunk.choices:
                    parts.append(choice.delta.content or "")
                    finish_reason = choice.finish_reason or finish_reason
        except openai.APIError as error:
            self.ledger.refuse(error)
            return None
        if finish_reason is None:
            self.ledger.refuse(RuntimeError("the stream ended without a finish_reason"))
            return None
        return Answer(question.prompt, question.topic, "".join(parts), finish_reason)

    def feedback(self, answer: Answer) -> str:
        """What the user says next."""
        said = self.wordings.confirmations if is_satisfied(answer) else self.wordings.complaints
        return self.rng.choice(said)

    async def converse(self, question: Question) -> Answer | None:
        """Question, answer, feedback, a short reply, end; the answer to the question."""
        answer = await self.ask(question)
        if answer is None:
            return None
        messages = [
            {"role": "user", "content": question.prompt},
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": self.feedback(answer)},
        ]
        await self.ask(question, messages, max_tokens=MAX_REPLY_TOKENS)
        return answer

    async def converse_all(self, questions: Sequence[Question]) -> list[Answer]:
        """Several conversations at once; the answers that were not refused."""
        answers = await asyncio.gather(*(self.converse(question) for question in questions))
        return [answer for answer in answers if answer is not None]

    async def evaluate(self, questions: Sequence[Question], concurrency: int = 16) -> list[Answer]:
        """Answers to held-out questions, asked beside the main line and without any hint."""
        gate = asyncio.Semaphore(concurrency)

        async def one(question: Question) -> Answer | None:
            async with gate:
                return await self.ask(question, headers={"X-Turn-Type": "side"})

        answers = await asyncio.gather(*map(one, questions))
        return [answer for answer in answers if answer is not None]

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()
