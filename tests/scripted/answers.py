"""What a scripted engine says, cut into tokens, and what can be wrong with it. Owns no wire shape.

Tokens are pieces of the text with ids and log-probabilities made from their content: no tokenizer would cut or number
them so, which shows whoever re-encodes.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

END_ID = 2
END_TEXT = "<|im_end|>"


class Fault(StrEnum):
    """One thing that an engine or the way from it does wrong."""

    LOGPROB_NULL = "logprob_null"
    LOGPROB_PLACEHOLDER = "logprob_placeholder"
    LOGPROB_LEFT_OUT = "logprob_left_out"
    EXTRA_TOKEN = "extra_token"
    LOST_TOKEN = "lost_token"
    WRONG_USAGE = "wrong_usage"
    NO_USAGE = "no_usage"
    NO_IDS = "no_ids"
    TRUNCATED = "truncated"
    DUPLICATED_CHUNK = "duplicated_chunk"
    GARBAGE_CHUNK = "garbage_chunk"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; ``arguments`` is JSON text."""

    name: str
    arguments: str
    id: str


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its text, where it is shown (``""`` when nowhere), id and log-probability (nats)."""

    text: str
    shown: str
    id: int
    logprob: float
    end: bool = False


@dataclass(frozen=True, slots=True)
class Scripted:
    """One answer. ``finish`` is the reason that the engine gives."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish: str = "stop"
    fault: Fault | None = None
    piece: int = 4
    """Characters a token."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What really was sampled: ids ``[P]``, ids ``[T]``, log-probabilities ``[T]`` in nats."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(slots=True)
class Given:
    """An answer under way: what was asked, what is said, in which tokens."""

    asked: dict[str, Any]
    said: Scripted
    response_id: str
    prompt_ids: list[int] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)

    @property
    def truth(self) -> Truth:
        """What is true of it."""
        ids, logprobs = [token.id for token in self.tokens], [token.logprob for token in self.tokens]
        return Truth(tuple(self.prompt_ids), tuple(ids), tuple(logprobs))


def _token(text: str, shown: str) -> Token:
    number = zlib.crc32(text.encode())
    return Token(text, shown, 3 + number % 40_000, -(1 + number % 997) / 500)


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def tokens_of(said: Scripted) -> list[Token]:
    """The answer's tokens in order: reasoning, content, calls, and the end token unless it was cut."""
    tokens = []
    if said.reasoning:
        tokens.append(_token("<think>", ""))
        tokens += [_token(piece, "reasoning") for piece in _pieces(said.reasoning, said.piece)]
        tokens.append(_token("</think>", ""))
    tokens += [_token(piece, "content") for piece in _pieces(said.content, said.piece)]
    for call in said.calls:
        tokens += [_token(piece, "call") for piece in _pieces(call_text(call), said.piece)]
    if said.finish != "length":
        tokens.append(Token(END_TEXT, "", END_ID, -0.25, end=True))
    return tokens


def call_text(call: Call) -> str:
    """A tool call as the model writes it."""
    return f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'


def prompt_ids_of(asked: dict[str, Any]) -> list[int]:
    """Ids that stand for the prompt: other messages or tools, other ids."""
    ids = [1]
    for part in (*(asked.get("tools") or ()), *asked["messages"]):
        text = json.dumps(part, sort_keys=True, ensure_ascii=False)
        ids += [3 + zlib.crc32(piece.encode("utf-8", "surrogatepass")) % 40_000 for piece in _pieces(text, 16)]
    return ids
