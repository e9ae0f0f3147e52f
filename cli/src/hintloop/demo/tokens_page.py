"""A page that shows which tokens the hints pushed up or down: teacher with the hint against student without."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from hintloop_contract.broker import Broker
from jinja2 import Environment, PackageLoader, StrictUndefined
from tokenizers import Tokenizer

from hintloop.trainer_files import KeptAnswer

NUM_ANSWERS = 12
#: Differences from here on have the full colour, nats.
FULL_COLOUR = 3.0
SCORES = {1: "+1, the user liked it", 0: "0, neither", -1: "−1, the user complained"}


@dataclass(frozen=True, slots=True)
class Token:
    """A token as shown; ``without`` and ``hinted`` are its log-probabilities, all three in nats."""

    text: str
    without: float
    hinted: float
    advantage: float

    @property
    def explanation(self) -> str:
        """What is under the pointer: how likely the token was, without and with the hint."""
        return (
            f"{self.text!r}\nwithout the hint: {math.exp(self.without):.1%} (log-probability {self.without:.3f})\n"
            f"with the hint: {math.exp(self.hinted):.1%} (log-probability {self.hinted:.3f})\n"
            f"advantage: {self.advantage:+.3f}"
        )

    @property
    def shown(self) -> str:
        """The text, with what cannot be seen made visible."""
        return self.text.replace("\n", "⏎\n") if self.text else "∅"

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


def spread(records: Sequence[KeptAnswer], num: int = NUM_ANSWERS) -> list[KeptAnswer]:
    """``num`` records, evenly over the run, in its order."""
    if len(records) <= num:
        return list(records)
    return [records[index * len(records) // num] for index in range(num)]


async def collect(broker: Broker, records: Sequence[KeptAnswer], tokenizer_dir: Path) -> list[ShownAnswer]:
    """What is to be shown of ``records``; questions come from the turns' own records, while they are kept."""
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    shown = []
    for record in spread(records):
        turn = await broker.get_turn(record.turn_id)
        tokens = [
            Token(tokenizer.decode([token_id], skip_special_tokens=False), without, hinted, advantage)
            for token_id, without, hinted, advantage in zip(
                record.response_ids, record.old_logprobs, record.teacher_logprobs, record.advantages, strict=True
            )
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
    page = environment.get_template("tokens.html.j2").render(answers=answers, full_colour=FULL_COLOUR, scores=SCORES)
    path.write_text(page, encoding="utf-8")
