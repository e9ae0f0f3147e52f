"""What passes between the trainer and the process that answers probes: msgpack, each message after its length."""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec

#: Length of a message in bytes, before it.
HEADER = struct.Struct("<Q")


class Prompt(msgspec.Struct, frozen=True):
    """A prompt as messages, or as token ids."""

    messages: tuple[dict[str, str], ...]
    prompt_ids: tuple[int, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One probe answer. ``token_ids`` ends with the end-of-turn token when ``ended``."""

    token_ids: list[int]
    ended: bool
    """It ended by itself within the limit."""
    text: str
    entropy: float
    """Mean entropy of the candidate's distribution at temperature 1, nats per token."""
    base_nll: float
    """Mean negative log-likelihood of the answer under the student's first weights, nats per token."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer, its end not counted."""
        return len(self.token_ids) - int(self.ended)


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First message: what to answer, and how. ``base`` is the directory of the student's first weights."""

    base: str
    tokenizer: str
    dtype: str
    device: str
    temperature: float
    max_new_tokens: int
    seed: int
    batch_size: int
    prompts: list[Prompt]


class Look(msgspec.Struct, frozen=True, tag=True):
    """Answer every prompt with the weights of ``directory``."""

    directory: str


class Read(msgspec.Struct, frozen=True, tag=True):
    """Another has answered, in the order of the prompts: say what the base thinks of it."""

    token_ids: list[list[int]]
    entropies: list[float]
    ended: list[bool]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The prompts' token ids."""

    prompt_ids: list[list[int]]


class Looked(msgspec.Struct, frozen=True, tag=True):
    """The answers, in the order of the prompts."""

    answers: list[Answer]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """It can never be done as it is configured."""

    detail: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It could not be done this time."""

    detail: str


Question = Setup | Look | Read
Reply = Ready | Looked | Refused | Failed


def pack(message: Question | Reply) -> bytes:
    """A message with its length before it."""
    data = msgspec.msgpack.encode(message)
    return HEADER.pack(len(data)) + data


def read_question(stream: BinaryIO) -> Question | None:
    """The next question; ``None`` at the end of the stream."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    return msgspec.msgpack.decode(stream.read(HEADER.unpack(header)[0]), type=Question)
