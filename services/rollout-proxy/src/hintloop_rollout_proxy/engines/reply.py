"""The shapes of OpenAI-like answers of either engine, and how they are decoded. Owns wire types; collects nothing.

Raw members are present or ``ABSENT``. Log-probabilities are most of an answer's bytes: they are cut out first and
decoded apart, so that the rest is short when it is decoded and when members are hidden.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
from hintloop_contract.messages import VersionSpan

from hintloop_rollout_proxy.engines.dialect import ABSENT, RAW_NULL

#: No answer has more tokens; what is above is no count.
MAX_COUNT = 2**31
MAX_TOKEN_ID = 2**31 - 1
NOTHING_SAID = (ABSENT, RAW_NULL)

TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
TokenIds = list[TokenId]

_LOGPROBS = b'"logprobs":{'
_VALUE_AT = len(_LOGPROBS) - 1
#: What follows ``logprobs`` in the engines' layout.
NEXT_MEMBER = b',"finish_reason":'


class WeightSpan(msgspec.Struct):
    """Tokens ``[start, end)`` made by ``version``, as SGLang writes it."""

    version: str | int
    start: int
    end: int


class Metadata(msgspec.Struct):
    """``metadata`` or ``meta_info``, which SGLang gives unasked."""

    weight_versions: list[WeightSpan] | None = None


class Sglext(msgspec.Struct):
    """The late chunk of a stream: prompt ids, and ids per choice."""

    input_ids: list[TokenId | TokenIds] | None = None
    output_ids: list[TokenIds] | None = None


class TokenLogprob(msgspec.Struct, gc=False):
    """An entry of ``logprobs.content``; only the number is read."""

    logprob: float | None = None


class ChatLogprobs(msgspec.Struct):
    """``choices[].logprobs`` of a chat."""

    content: list[TokenLogprob] | None = None


class TextLogprobs(msgspec.Struct):
    """``choices[].logprobs`` of a completion."""

    token_logprobs: list[float | None] | None = None


class Usage(msgspec.Struct):
    """``usage``; only the number of generated tokens is read."""

    completion_tokens: int | None = None


class ReplyChoice(msgspec.Struct):
    """A choice of a chunk (``delta``) or of a whole answer (``message``), or of a completion (``text``)."""

    index: int = 0
    delta: msgspec.Raw = ABSENT
    message: msgspec.Raw = ABSENT
    text: msgspec.Raw = ABSENT
    logprobs: msgspec.Raw = ABSENT
    finish_reason: str | None = None
    token_ids: msgspec.Raw = ABSENT
    response_token_ids: msgspec.Raw = ABSENT
    prompt_token_ids: msgspec.Raw = ABSENT
    meta_info: msgspec.Raw = ABSENT


class Reply(msgspec.Struct):
    """A chunk or a whole answer."""

    id: str | None = None
    model: str | None = None
    choices: list[ReplyChoice] = []
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    prompt_token_ids: msgspec.Raw = ABSENT
    metadata: msgspec.Raw = ABSENT
    sglext: msgspec.Raw = ABSENT


class PlainChoice(msgspec.Struct):
    """What the commonest choices may say beside their words. What needs a closer look does not decode."""

    index: int = 0
    finish_reason: str | None = None
    token_ids: TokenIds | None = None
    logprobs: None = None
    prompt_token_ids: None = None
    response_token_ids: None = None
    meta_info: None = None


class ChunkChoice(PlainChoice, kw_only=True):
    """A choice of the commonest chunk: some text and its tokens."""

    delta: dict[str, Any]


class Chunk(msgspec.Struct):
    """The commonest chunk, its ``logprobs`` cut out."""

    choices: tuple[ChunkChoice]
    id: str | None = None
    model: str | None = None
    usage: None = None
    error: None = None
    prompt_token_ids: None = None
    metadata: None = None
    sglext: None = None


class WholeChoice(PlainChoice, kw_only=True):
    """The one choice of the commonest whole answer of a chat."""

    message: msgspec.Raw


class Whole(msgspec.Struct):
    """The commonest whole answer of a chat, its ``logprobs`` cut out."""

    choices: tuple[WholeChoice]
    id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    error: None = None
    prompt_token_ids: TokenIds | None = None
    metadata: None = None
    sglext: None = None


class TextChunkChoice(msgspec.Struct):
    """A choice of a completion's commonest chunk."""

    text: str
    index: int = 0
    finish_reason: str | None = None
    token_ids: TokenIds | None = None
    logprobs: None = None
    prompt_token_ids: None = None


class TextChunk(msgspec.Struct):
    """A completion's commonest chunk, its ``logprobs`` cut out."""

    choices: tuple[TextChunkChoice]
    id: str | None = None
    model: str | None = None
    usage: None = None
    error: None = None
    metadata: None = None
    sglext: None = None


whole_decoder = msgspec.json.Decoder(Whole)
text_chunk_decoder = msgspec.json.Decoder(TextChunk)
chunk_decoder = msgspec.json.Decoder(Chunk)
delta_decoder = msgspec.json.Decoder(dict[str, Any])
text_decoder = msgspec.json.Decoder(str)
chat_logprobs_decoder = msgspec.json.Decoder(ChatLogprobs | None)
text_logprobs_decoder = msgspec.json.Decoder(TextLogprobs | None)
ids_decoder = msgspec.json.Decoder(TokenIds | None)
sglext_decoder = msgspec.json.Decoder(Sglext | None)
_reply_decoder = msgspec.json.Decoder(Reply)
_usage_decoder = msgspec.json.Decoder(Usage | None)
_metadata_decoder = msgspec.json.Decoder(Metadata | None)


def decode_reply(data: bytes) -> Reply:
    """Decode an answer. What JSON has no word for (NaN, infinities) is read as null; the client sees it as it is.

    Raises:
        msgspec.DecodeError, ValueError: it is not JSON of the expected shape.
    """
    try:
        return _reply_decoder.decode(data)
    except msgspec.DecodeError:
        return _reply_decoder.decode(msgspec.json.encode(json.loads(data)))


def cut_logprobs(data: bytes) -> tuple[bytes, bytes | None]:
    """The answer with null in place of its one ``logprobs`` object, and that object's text; the answer as it is when
    it has none or is not in the engines' layout. The text is the whole value if and only if it is valid JSON, and the
    choice's if there is but one choice."""
    start = data.find(_LOGPROBS)
    if start < 0:
        return data, None
    start += _VALUE_AT
    end = data.find(NEXT_MEMBER, start)
    return (data, None) if end < 0 else (b"%bnull%b" % (data[:start], data[end:]), data[start:end])


def read_usage(raw: msgspec.Raw) -> int | None:
    """``completion_tokens`` of a ``usage`` member, or ``None``."""
    try:
        usage = _usage_decoder.decode(raw)
    except msgspec.DecodeError:
        # An unknown number of tokens is a mismatch, which is what the capture will say.
        return None
    number = None if usage is None else usage.completion_tokens
    return number if number is not None and 0 <= number <= MAX_COUNT else None


def spans_of(raw: msgspec.Raw) -> tuple[VersionSpan, ...]:
    """Version spans of ``metadata`` or ``meta_info``; none when a version is not one of ours (an integer)."""
    metadata = _metadata_decoder.decode(raw)
    if metadata is None or not metadata.weight_versions:
        return ()
    spans = []
    for span in metadata.weight_versions:
        try:
            spans.append(VersionSpan(version=int(span.version), start=span.start, end=span.end))
        except ValueError:
            return ()
    return tuple(spans)


def prompt_ids_of(input_ids: list[TokenId | TokenIds]) -> list[int]:
    """The prompt's ids: the list itself, or the first of the lists in it. Raises ``ValueError`` when it is mixed."""
    lists = [entry for entry in input_ids if isinstance(entry, list)]
    if len(lists) == len(input_ids):
        return lists[0]
    if lists:
        raise ValueError(f"sglext.input_ids mixes {len(lists)} lists among {len(input_ids)} entries")
    return [entry for entry in input_ids if isinstance(entry, int)]
