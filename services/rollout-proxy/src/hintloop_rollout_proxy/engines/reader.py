"""Reads OpenAI-shaped chat answers of either engine; a dialect says where its engine puts token ids.

Owns decoding, assembling the assistant message and hiding; judges nothing (`problems` does).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from hintloop_contract.messages import DropReason

from hintloop_rollout_proxy.engines.dialect import ABSENT, NULL, Answer, Wishes
from hintloop_rollout_proxy.engines.splice import remove_member, replace_member, reserialise


class TokenLogprob(msgspec.Struct):
    """An entry of ``logprobs.content``; only the number is read."""

    logprob: float | None = None


class ChoiceLogprobs(msgspec.Struct):
    """``choices[].logprobs`` of the chat API."""

    content: list[TokenLogprob] | None = None


class Usage(msgspec.Struct):
    """``usage``; only the number of generated tokens is read."""

    completion_tokens: int | None = None


_logprobs_decoder = msgspec.json.Decoder(ChoiceLogprobs | None)
_ids_decoder = msgspec.json.Decoder(list[int] | None)
#: No answer has more tokens; what is above is no count.
MAX_COUNT = 2**31
#: What reading JSON of an unexpected shape may raise.
UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)

_usage_decoder = msgspec.json.Decoder(Usage | None)


def read_logprobs(raw: msgspec.Raw) -> list[float | None] | None:
    """The numbers of a ``logprobs`` member; ``None`` when there are none."""
    text = bytes(raw)
    if not text or text == NULL:
        return None
    decoded = _logprobs_decoder.decode(text)
    content = None if decoded is None else decoded.content
    return None if content is None else [entry.logprob for entry in content]


def read_ids(raw: msgspec.Raw) -> list[int] | None:
    """A list of token ids, or ``None``."""
    text = bytes(raw)
    return _ids_decoder.decode(text) if text else None


def read_usage(raw: msgspec.Raw) -> int | None:
    """``completion_tokens`` of a ``usage`` member, or ``None``."""
    text = bytes(raw)
    try:
        usage = _usage_decoder.decode(text) if text else None
    except msgspec.DecodeError:
        # An unknown number of tokens is a mismatch, which is what the capture will say.
        return None
    number = None if usage is None else usage.completion_tokens
    return number if number is not None and 0 <= number <= MAX_COUNT else None


def merge_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a streamed delta to the message: texts grow, tool calls grow by their index."""
    for key, value in delta.items():
        if value is None:
            continue
        if key == "tool_calls":
            calls = message.setdefault("tool_calls", {})
            for part in value:
                _merge_call(calls, part)
        elif key == "role":
            message["role"] = value
        elif isinstance(value, str) and isinstance(message.get(key), str):
            message[key] += value
        else:
            message[key] = value


def _merge_call(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    call = calls.setdefault(part.get("index", 0), {"id": None, "type": "function", "function": {}})
    for key in ("id", "type"):
        if part.get(key) is not None:
            call[key] = part[key]
    function = part.get("function") or {}
    if function.get("name") is not None:
        call["function"]["name"] = function["name"]
    if function.get("arguments") is not None:
        call["function"]["arguments"] = call["function"].get("arguments", "") + function["arguments"]


def rename_model(data: bytes, model: str | None, public_model: str) -> bytes:
    """Let the answer say the configured model name."""
    if model is None or model == public_model:
        return data
    new = msgspec.json.encode(public_model)
    changed = replace_member(data, b"model", msgspec.json.encode(model), new)
    if changed is not None:
        return changed

    def edit(document: dict[str, Any]) -> None:
        document["model"] = public_model

    return reserialise(data, edit)


class Choice(msgspec.Struct):
    """A choice of a chunk (``delta``) or of a whole answer (``message``); raw members are present or empty."""

    index: int = 0
    delta: msgspec.Raw = ABSENT
    message: msgspec.Raw = ABSENT
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
    choices: list[Choice] = []
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    prompt_token_ids: msgspec.Raw = ABSENT
    metadata: msgspec.Raw = ABSENT
    sglext: msgspec.Raw = ABSENT


_reply_decoder = msgspec.json.Decoder(Reply)


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


class ChatReader:
    """Reads one chat answer. A dialect overrides :meth:`take_ids` and names the members to hide."""

    def __init__(
        self, wishes: Wishes, public_model: str, hidden_choice: tuple[str, ...], hidden: tuple[str, ...]
    ) -> None:
        """Hide the members ``hidden_choice`` of every choice and ``hidden`` of the answer."""
        self.answer = Answer()
        self.wishes = wishes
        self._public_model = public_model
        self._hidden_choice = hidden_choice
        self._hidden = hidden

    def take_ids(self, reply: Reply, choice: Choice | None) -> None:
        """Take ids, prompt ids and spans from where the engine puts them; ``choice`` is choice 0, if present."""
        raise NotImplementedError

    def event(self, data: bytes) -> bytes | None:
        """Read one chunk; see ``Reader.event``."""
        data, reply = decode_reply(data)
        answer = self.answer
        if bytes(reply.error) not in (b"", NULL):
            answer.error = bytes(reply.error).decode(errors="replace")
            return data
        answer.response_id = answer.response_id or reply.id
        usage = read_usage(reply.usage)
        if usage is not None:
            answer.usage_completion_tokens = usage
        choice = next((choice for choice in reply.choices if choice.index == 0), None)
        if choice is not None:
            self._grow(choice)
        self._take_ids(reply, choice)
        if not reply.choices and self._is_ours(reply, usage):
            return None
        return self._strip(data, reply)

    def body(self, data: bytes) -> bytes:
        """Read a whole answer; see ``Reader.body``."""
        data, reply = decode_reply(data)
        answer = self.answer
        answer.response_id = reply.id
        answer.usage_completion_tokens = read_usage(reply.usage)
        choice = next((choice for choice in reply.choices if choice.index == 0), None)
        if choice is not None:
            self._take_message(choice)
            answer.logprobs = self._logprobs(choice)
            answer.finish_reason = choice.finish_reason
        self._take_ids(reply, choice)
        answer.finished = True
        return self._strip(data, reply)

    def hide(self, data: bytes) -> bytes | None:
        """Hide without reading; see ``Reader.hide``."""
        try:
            return reserialise(data, self._hide_all)
        except UNREADABLE:
            names = (*self._hidden_choice, *self._hidden)
            return None if any(f'"{name}"'.encode() in data for name in names) else data

    def _hide_all(self, document: dict[str, Any]) -> None:
        self._hide(document)
        for name in self._hidden_choice:
            document.pop(name, None)
        if isinstance(document.get("model"), str):
            document["model"] = self._public_model

    def _take_ids(self, reply: Reply, choice: Choice | None) -> None:
        try:
            self.take_ids(reply, choice)
        except UNREADABLE as error:
            self.answer.note_fault(DropReason.IDS_MISSING, f"unreadable token ids: {error!s:.200}")

    def _logprobs(self, choice: Choice) -> list[float | None] | None:
        try:
            return read_logprobs(choice.logprobs)
        except UNREADABLE as error:
            self.answer.note_fault(DropReason.LOGPROB_MISSING, f"unreadable log-probabilities: {error!s:.200}")
            return None

    def _take_message(self, choice: Choice) -> None:
        message = bytes(choice.message)
        if message.startswith(b"{"):
            self.answer.message_json = message
        else:
            self.answer.note_fault(DropReason.NOT_TRAINABLE, f"the answer's message is {message[:40]!r}, no object")

    def _is_ours(self, reply: Reply, usage: int | None) -> bool:
        """Whether a chunk without choices holds nothing but what we asked for."""
        wanted_usage = usage is not None and self.wishes.usage
        ours = usage is not None or any(bytes(getattr(reply, name)) not in (b"", NULL) for name in self._hidden)
        return ours and not wanted_usage

    def _grow(self, choice: Choice) -> None:
        answer = self.answer
        delta = bytes(choice.delta)
        if delta not in (b"", NULL):
            try:
                merge_delta(answer.message, msgspec.json.decode(delta, type=dict[str, Any]))
            except UNREADABLE as error:
                answer.note_fault(DropReason.NOT_TRAINABLE, f"unreadable delta: {error!r:.200}")
        logprobs = self._logprobs(choice)
        if logprobs is not None:
            if answer.logprobs is None:
                answer.logprobs = logprobs
            else:
                answer.logprobs.extend(logprobs)
        if choice.finish_reason is not None:
            answer.finish_reason = choice.finish_reason

    def _strip(self, data: bytes, reply: Reply) -> bytes:
        out: bytes | None = data
        for choice in reply.choices:
            if out is not None and not self.wishes.logprobs and bytes(choice.logprobs) not in (b"", NULL):
                out = replace_member(out, b"logprobs", bytes(choice.logprobs), NULL)
            out = self._remove(out, choice, self._hidden_choice)
        out = self._remove(out, reply, self._hidden)
        if out is None:
            out = reserialise(data, self._hide)
        return rename_model(out, reply.model, self._public_model)

    @staticmethod
    def _remove(out: bytes | None, holder: Choice | Reply, names: tuple[str, ...]) -> bytes | None:
        for name in names:
            value = bytes(getattr(holder, name))
            if out is not None and value:
                out = remove_member(out, name.encode(), value)
        return out

    def _hide(self, document: dict[str, Any]) -> None:
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            if not self.wishes.logprobs and "logprobs" in choice:
                choice["logprobs"] = None
            for name in self._hidden_choice:
                choice.pop(name, None)
        for name in self._hidden:
            document.pop(name, None)
