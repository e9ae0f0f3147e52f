"""A page that shows which tokens the hints pushed up or down: teacher with the hint against student without."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from hintloop_contract.broker import Broker
from jinja2 import Environment, PackageLoader, StrictUndefined
from tokenizers import Tokenizer

from hintloop.demo.trainer_log import TokenRecord

NUM_ANSWERS = 12
#: Differences from here on have the full colour, nats.
FULL_COLOUR = 3.0


@dataclass(frozen=True, slots=True)
class Token:
    """A token as shown; ``advantage`` in nats."""

    text: str
    advantage: float

    @property
    def colour(self) -> str:
        """Green for up, red for down, stronger for more."""
        strength = min(1.0, abs(self.advantage) / FULL_COLOUR)
        return f"rgba({'34, 160, 80' if self.advantage > 0 else '210, 50, 50'}, {strength:.2f})"


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """One trained answer."""

    step: int
    question: str
    hint: str | None
    score: int | None
    tokens: list[Token]


def spread(records: Sequence[TokenRecord], num: int = NUM_ANSWERS) -> list[TokenRecord]:
    """``num`` records, evenly over the run, in its order."""
    if len(records) <= num:
        return list(records)
    return [records[index * len(records) // num] for index in range(num)]


async def collect(broker: Broker, records: Sequence[TokenRecord], tokenizer_dir: Path) -> list[ShownAnswer]:
    """What is to be shown of ``records``; questions come from the turns' own records, while they are kept."""
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    shown = []
    for record in spread(records):
        turn = await broker.get_turn(record.turn_id)
        tokens = [
            Token(tokenizer.decode([token_id], skip_special_tokens=False), advantage)
            for token_id, advantage in zip(record.response_ids, record.advantages, strict=True)
        ]
        question = "(the turn's record is no longer kept)" if turn is None else last_user_text(turn.messages)
        shown.append(ShownAnswer(record.step, question, record.hint, record.score, tokens))
    return shown


def last_user_text(messages: bytes) -> str:
    """Text of the last user message of a JSON array of messages."""
    for message in reversed(msgspec.json.decode(messages)):
        if message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return ""


def write(path: Path, answers: Sequence[ShownAnswer]) -> None:
    """Write the page."""
    environment = Environment(
        loader=PackageLoader("hintloop.demo", "templates"), autoescape=True, undefined=StrictUndefined
    )
    page = environment.get_template("tokens.html.j2").render(answers=answers, full_colour=FULL_COLOUR)
    path.write_text(page, encoding="utf-8")
