"""What a scripted engine says, cut into tokens, and what can be wrong with it. Owns no wire shape.

Tokens are pieces of the text with ids and log-probabilities made from their content: no tokenizer would cut or number
them so, which shows whoever re-encodes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

END_ID = 2
END_TEXT = "<|im_end|>"


class Fault(StrEnum):
    """One thing that an engine or the way from it does wrong."""

    LOGPROB_NULL = "logprob_null"
    LOGPROB_NAN = "logprob_nan"
    LOGPROB_INFINITE = "logprob_infinite"
    LOGPROB_POSITIVE = "logprob_positive"
    LOGPROB_PLACEHOLDER = "logprob_placeholder"
    LOGPROB_LEFT_OUT = "logprob_left_out"
    EXTRA_TOKEN = "extra_token"
    LOST_TOKEN = "lost_token"
    NULL_ID = "null_id"
    WRONG_USAGE = "wrong_usage"
    NO_USAGE = "no_usage"
    NO_IDS = "no_ids"
    TRUNCATED = "truncated"
    DISCONNECTED = "disconnected"
    DUPLICATED_CHUNK = "duplicated_chunk"
    LOST_CHUNK = "lost_chunk"
    GARBAGE_CHUNK = "garbage_chunk"
    ERROR_CHUNK = "error_chunk"
    GIVEN_UP = "given_up"


#: Faults that only an answer in events can have.
STREAM_FAULTS = frozenset((Fault.DUPLICATED_CHUNK, Fault.LOST_CHUNK, Fault.GARBAGE_CHUNK, Fault.ERROR_CHUNK))
WRONG_LOGPROBS = {
    Fault.LOGPROB_NULL: None,
    Fault.LOGPROB_NAN: float("nan"),
    Fault.LOGPROB_INFINITE: float("-inf"),
    Fault.LOGPROB_POSITIVE: 0.5,
    Fault.LOGPROB_PLACEHOLDER: -9999.0,
}


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
class Sent:
    """A token as it is sent: its ids are one, and its log-probability is there, unless something is wrong."""

    token: Token
    ids: tuple[int | None, ...]
    logprobs: tuple[float | None, ...]


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
    at: float = 0.5
    """Where the fault strikes, as a share of the answer."""
    together: int = 1
    """Tokens a chunk."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What really was sampled: ids ``[P]``, ids ``[T]``, log-probabilities ``[T]`` in nats."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Spoken:
    """One choice under way: what is said, in which tokens, and how they are sent."""

    said: Scripted
    tokens: tuple[Token, ...]
    sent: tuple[Sent, ...]
    response_id: str


@dataclass(frozen=True, slots=True)
class Given:
    """An answer under way. ``fault`` is that of one of its choices, if any."""

    model: str
    prompt_ids: tuple[int, ...]
    choices: tuple[Spoken, ...]

    @property
    def fault(self) -> Fault | None:
        """What is wrong with it."""
        return next((choice.said.fault for choice in self.choices if choice.said.fault), None)

    @property
    def at(self) -> float:
        """Where that strikes."""
        return next((choice.said.at for choice in self.choices if choice.said.fault), 0.5)

    @property
    def num_tokens(self) -> int:
        """Tokens by the engine's count, which may be wrong."""
        return sum(len(choice.tokens) for choice in self.choices) + (self.fault is Fault.WRONG_USAGE)

    def truth(self, index: int) -> Truth:
        """What is true of a choice."""
        tokens = self.choices[index].tokens
        ids, logprobs = tuple(token.id for token in tokens), tuple(token.logprob for token in tokens)
        return Truth(self.prompt_ids, ids, logprobs)


def spoken(said: Scripted, response_id: str, text_only: bool = False) -> Spoken:
    """``said`` in tokens, with its fault; ``text_only``: by an API that knows neither reasoning nor calls."""
    tokens = tuple(text_tokens_of(said) if text_only else tokens_of(said))
    return Spoken(said, tokens, tuple(_sent(said, tokens)), response_id)


def _sent(said: Scripted, tokens: Sequence[Token]) -> list[Sent]:
    sent = [Sent(token, (token.id,), (token.logprob,)) for token in tokens]
    fault = said.fault
    struck = min(int(said.at * len(tokens)), len(tokens) - 1)
    token = tokens[struck]
    if fault in WRONG_LOGPROBS:
        sent[struck] = Sent(token, (token.id,), (WRONG_LOGPROBS[fault],))
    elif fault is Fault.LOGPROB_LEFT_OUT:
        sent[struck] = Sent(token, (token.id,), ())
    elif fault is Fault.EXTRA_TOKEN:
        sent[struck] = Sent(token, (token.id, token.id), (token.logprob,))
    elif fault is Fault.LOST_TOKEN:
        sent[struck] = Sent(token, (), (token.logprob,))
    elif fault is Fault.NULL_ID:
        sent[struck] = Sent(token, (None,), (token.logprob,))
    return sent


def _token(text: str, shown: str) -> Token:
    number = zlib.crc32(text.encode("utf-8", "surrogatepass"))
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
    return [*tokens, *_end(said)]


def text_tokens_of(said: Scripted) -> list[Token]:
    """The tokens of an answer that is text alone."""
    return [*(_token(piece, "content") for piece in _pieces(said.content, said.piece)), *_end(said)]


def _end(said: Scripted) -> list[Token]:
    return [] if said.finish == "length" else [Token(END_TEXT, "", END_ID, -0.25, end=True)]


def call_text(call: Call) -> str:
    """A tool call as the model writes it."""
    return f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'


def prompt_ids_of(asked: dict[str, Any]) -> list[int]:
    """Ids that stand for the prompt: other messages or tools, other ids. A prompt of ids is itself."""
    prompt = asked.get("prompt", asked.get("input_ids", asked.get("text")))
    if isinstance(prompt, list):
        return list(prompt)
    parts = [prompt] if isinstance(prompt, str) else [*(asked.get("tools") or ()), *asked["messages"]]
    ids = [1]
    for part in parts:
        text = json.dumps(part, sort_keys=True, ensure_ascii=False)
        ids += [3 + zlib.crc32(piece.encode("utf-8", "surrogatepass")) % 40_000 for piece in _pieces(text, 16)]
    return ids
