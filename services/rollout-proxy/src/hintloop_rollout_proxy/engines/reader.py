"""Reads OpenAI-shaped answers of either engine, chats and completions, whole or streamed.

Owns decoding and collecting; hiding is `hiding`, judging is `problems`. Ids are taken from wherever an engine puts
them: beside the choices, inside one, or in the late ``sglext`` chunk.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hintloop_contract.messages import DropReason, VersionSpan

from hintloop_rollout_proxy.engines.answer import Answer, Choice
from hintloop_rollout_proxy.engines.dialect import ABSENT, RAW_NULL, Hidden
from hintloop_rollout_proxy.engines.hiding import (
    UNREADABLE,
    hide_members,
    hide_one,
    hide_slowly,
    hide_unread,
    rename_model,
)
from hintloop_rollout_proxy.engines.splice import remove_member

#: No answer has more tokens; what is above is no count.
MAX_COUNT = 2**31


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

    input_ids: list[int | list[int]] | None = None
    output_ids: list[list[int]] | None = None


class TokenLogprob(msgspec.Struct):
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
    """A chunk or a whole answer; raw members are present or empty."""

    id: str | None = None
    model: str | None = None
    choices: list[ReplyChoice] = []
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    prompt_token_ids: msgspec.Raw = ABSENT
    metadata: msgspec.Raw = ABSENT
    sglext: msgspec.Raw = ABSENT


_NOTHING = (ABSENT, RAW_NULL)
_reply_decoder = msgspec.json.Decoder(Reply)
_delta_decoder = msgspec.json.Decoder(dict[str, Any])
_text_decoder = msgspec.json.Decoder(str)
_chat_logprobs_decoder = msgspec.json.Decoder(ChatLogprobs | None)
_text_logprobs_decoder = msgspec.json.Decoder(TextLogprobs | None)
_ids_decoder = msgspec.json.Decoder(list[int] | None)
_usage_decoder = msgspec.json.Decoder(Usage | None)
_metadata_decoder = msgspec.json.Decoder(Metadata | None)
_sglext_decoder = msgspec.json.Decoder(Sglext | None)


def decode_reply(data: bytes) -> tuple[bytes, Reply]:
    """Decode an answer; give back its JSON text, in which what JSON has no word for (NaN, infinities) is null.

    Raises:
        msgspec.DecodeError, ValueError: it is not JSON of the expected shape.
    """
    try:
        return data, _reply_decoder.decode(data)
    except msgspec.DecodeError:
        sane = msgspec.json.encode(json.loads(data))
        return sane, _reply_decoder.decode(sane)


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


def prompt_ids_of(input_ids: list[int | list[int]]) -> list[int]:
    """The prompt's ids: the list itself, or the first of the lists in it. Raises ``ValueError`` when it is mixed."""
    lists = [entry for entry in input_ids if isinstance(entry, list)]
    if len(lists) == len(input_ids):
        return lists[0]
    if lists:
        raise ValueError(f"sglext.input_ids mixes {len(lists)} lists among {len(input_ids)} entries")
    return [entry for entry in input_ids if isinstance(entry, int)]


class ReplyReader:
    """Reads one answer of a chat; :class:`TextReader` is its like for completions."""

    def __init__(self, hidden: Hidden, public_model: str) -> None:
        """Hide what ``hidden`` says."""
        self.answer = Answer()
        self._hidden = hidden
        self._public_model = public_model

    def event(self, data: bytes) -> bytes | None:
        """Read one chunk; see ``Reader.event``."""
        data, reply = decode_reply(data)
        answer = self.answer
        if reply.error not in _NOTHING:
            answer.error = bytes(reply.error).decode(errors="replace")
            return data
        if answer.response_id is None:
            answer.response_id = reply.id
        usage = None if reply.usage in _NOTHING else read_usage(reply.usage)
        if usage is not None:
            answer.usage_completion_tokens = usage
        bare = bool(reply.choices) and self._hidden.bare_deltas and usage is None
        for seen in reply.choices:
            choice = answer.choice(seen.index)
            bare = self._grow(choice, seen) and bare
            self._take_ids(choice, seen)
        self._take_reply_ids(reply)
        if bare or (not reply.choices and self._is_ours(reply, usage)):
            return None
        return self._strip(data, reply)

    def body(self, data: bytes) -> bytes:
        """Read a whole answer; see ``Reader.body``."""
        data, reply = decode_reply(data)
        answer = self.answer
        answer.response_id = reply.id
        answer.usage_completion_tokens = None if reply.usage is ABSENT else read_usage(reply.usage)
        for seen in reply.choices:
            choice = answer.choice(seen.index)
            self._take_message(choice, seen)
            self._take_logprobs(choice, seen)
            choice.finish_reason = seen.finish_reason
            self._take_ids(choice, seen)
        self._take_reply_ids(reply)
        answer.finished = True
        return self._strip(data, reply)

    def hide(self, data: bytes) -> bytes | None:
        """Hide without reading; see ``Reader.hide``."""
        return hide_unread(data, self._hidden, self._public_model)

    def ended(self) -> None:
        """A stream without ``[DONE]`` was cut."""

    def _grow(self, choice: Choice, seen: ReplyChoice) -> bool:
        """Add a chunk to its choice; whether it says nothing besides what only we asked for."""
        bare = seen.finish_reason is None
        if not bare:
            choice.finish_reason = seen.finish_reason
        if seen.delta not in _NOTHING:
            try:
                delta = _delta_decoder.decode(seen.delta)
                choice.merge(delta)
                bare = bare and not any(value is not None for value in delta.values())
            except UNREADABLE as error:
                bare = False
                choice.note_fault(DropReason.NOT_TRAINABLE, f"unreadable delta: {error!r:.200}")
        self._take_logprobs(choice, seen)
        return bare

    def _take_message(self, choice: Choice, seen: ReplyChoice) -> None:
        message = bytes(seen.message)
        if message.startswith(b"{"):
            choice.message_json = message
        else:
            choice.note_fault(DropReason.NOT_TRAINABLE, f"the answer's message is {message[:40]!r}, no object")

    def _take_logprobs(self, choice: Choice, seen: ReplyChoice) -> None:
        if seen.logprobs in _NOTHING:
            return
        try:
            logprobs = self._read_logprobs(seen.logprobs)
        except UNREADABLE as error:
            choice.note_fault(DropReason.LOGPROB_MISSING, f"unreadable log-probabilities: {error!s:.200}")
            return
        if logprobs is not None:
            choice.add_logprobs(logprobs)

    def _read_logprobs(self, raw: msgspec.Raw) -> list[float | None] | None:
        decoded = _chat_logprobs_decoder.decode(raw)
        content = None if decoded is None else decoded.content
        return None if content is None else [entry.logprob for entry in content]

    def _take_ids(self, choice: Choice, seen: ReplyChoice) -> None:
        try:
            if seen.token_ids not in _NOTHING:
                choice.add_ids(_ids_decoder.decode(seen.token_ids) or [])
            elif seen.response_token_ids not in _NOTHING:
                choice.add_ids(_ids_decoder.decode(seen.response_token_ids) or [])
            if seen.meta_info not in _NOTHING:
                choice.spans = spans_of(seen.meta_info) or choice.spans
        except UNREADABLE as error:
            choice.note_fault(DropReason.IDS_MISSING, f"unreadable token ids: {error!s:.200}")
        if seen.prompt_token_ids not in _NOTHING:
            self._take_prompt_ids(seen.prompt_token_ids)

    def _take_prompt_ids(self, raw: msgspec.Raw) -> None:
        answer = self.answer
        if answer.prompt_ids is not None:
            return
        try:
            answer.prompt_ids = _ids_decoder.decode(raw)
        except UNREADABLE as error:
            answer.prompt_fault = (DropReason.IDS_MISSING, f"unreadable prompt token ids: {error!s:.200}")

    def _take_reply_ids(self, reply: Reply) -> None:
        """What stands beside the choices: prompt ids, the spans of choice 0, and the late chunk of a stream."""
        answer = self.answer
        if reply.prompt_token_ids not in _NOTHING:
            self._take_prompt_ids(reply.prompt_token_ids)
        try:
            if reply.metadata not in _NOTHING and 0 in answer.choices and not answer.choices[0].spans:
                answer.choices[0].spans = spans_of(reply.metadata)
            if reply.sglext not in _NOTHING:
                self._take_sglext(_sglext_decoder.decode(reply.sglext))
        except UNREADABLE as error:
            answer.prompt_fault = (DropReason.IDS_MISSING, f"unreadable token ids: {error!s:.200}")

    def _take_sglext(self, sglext: Sglext | None) -> None:
        if sglext is None:
            return
        for index, ids in enumerate(sglext.output_ids or ()):
            self.answer.choice(index).response_ids = ids
        if sglext.input_ids:
            self.answer.prompt_ids = prompt_ids_of(sglext.input_ids)

    def _is_ours(self, reply: Reply, usage: int | None) -> bool:
        """Whether a chunk without choices holds nothing but what we asked for."""
        if usage is not None and not self._hidden.usage:
            return False
        return usage is not None or any(getattr(reply, name) not in _NOTHING for name in self._hidden.reply)

    def _strip(self, data: bytes, reply: Reply) -> bytes:
        hidden, choices = self._hidden, reply.choices
        if len(choices) == 1:
            out = self._strip_single(data, choices[0])
        else:
            out = hide_members(data, self._unasked(choices, ("logprobs",) if hidden.logprobs else ()), True)
            if out is not None:
                out = hide_members(out, self._unasked(choices, hidden.choice), hidden.nulled)
        for name in hidden.reply:
            value = getattr(reply, name)
            if out is not None and value is not ABSENT:
                out = hide_one(out, name, value, hidden.nulled)
        if out is None:
            out = hide_slowly(data, hidden)
        if hidden.sglext and not hidden.reply and reply.sglext not in _NOTHING:
            out = _trim_sglext(out, reply.sglext, hidden.sglext)
        return out if reply.model == self._public_model else rename_model(out, reply.model, self._public_model)

    def _strip_single(self, data: bytes, choice: ReplyChoice) -> bytes | None:
        hidden = self._hidden
        out: bytes | None = data
        if hidden.logprobs and choice.logprobs is not ABSENT:
            out = hide_one(data, "logprobs", choice.logprobs, True)
        for name in hidden.choice:
            value = getattr(choice, name)
            if out is not None and value is not ABSENT:
                out = hide_one(out, name, value, hidden.nulled)
        return out

    @staticmethod
    def _unasked(choices: list[ReplyChoice], names: tuple[str, ...]) -> list[tuple[str, msgspec.Raw]]:
        members = [(name, getattr(choice, name)) for choice in choices for name in names]
        return [(name, value) for name, value in members if value is not ABSENT]


class TextReader(ReplyReader):
    """Reads one answer of a completion; its text stands as an assistant message's content."""

    def _grow(self, choice: Choice, seen: ReplyChoice) -> bool:
        if seen.finish_reason is not None:
            choice.finish_reason = seen.finish_reason
        self._take_message(choice, seen)
        self._take_logprobs(choice, seen)
        return False

    def _take_message(self, choice: Choice, seen: ReplyChoice) -> None:
        if seen.text in _NOTHING:
            return
        try:
            choice.message["content"] = (choice.message["content"] or "") + _text_decoder.decode(seen.text)
        except UNREADABLE as error:
            choice.note_fault(DropReason.NOT_TRAINABLE, f"unreadable text: {error!r:.200}")

    def _read_logprobs(self, raw: msgspec.Raw) -> list[float | None] | None:
        decoded = _text_logprobs_decoder.decode(raw)
        return None if decoded is None else decoded.token_logprobs


def _trim_sglext(data: bytes, sglext: msgspec.Raw, unwanted: tuple[str, ...]) -> bytes:
    members = msgspec.json.decode(sglext, type=dict[str, msgspec.Raw])
    for name in unwanted:
        if name in members:
            data = remove_member(data, name.encode(), bytes(members[name])) or data
    return data
