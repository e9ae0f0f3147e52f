"""Reads OpenAI-shaped answers of either engine, chats and completions, whole or streamed.

Owns collecting; the shapes are `reply`, hiding is `hiding`, judging is `problems`. Ids are taken from wherever an
engine puts them: beside the choices, inside one, or in the late ``sglext`` chunk. The commonest chunk has a short way.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from hintloop_contract.messages import DropReason

from hintloop_rollout_proxy.engines.answer import Answer, Choice
from hintloop_rollout_proxy.engines.dialect import ABSENT, Hidden
from hintloop_rollout_proxy.engines.hiding import (
    UNREADABLE,
    hide_ids,
    hide_members,
    hide_one,
    hide_slowly,
    hide_unread,
    rename_model,
    stamp_of,
)
from hintloop_rollout_proxy.engines.quick import QuickWay, learn
from hintloop_rollout_proxy.engines.reply import (
    NOTHING_SAID,
    Chunk,
    ChunkChoice,
    Reply,
    ReplyChoice,
    Sglext,
    TextChunk,
    TextChunkChoice,
    chat_logprobs_decoder,
    chunk_decoder,
    cut_logprobs,
    decode_reply,
    delta_decoder,
    ids_decoder,
    prompt_ids_of,
    read_usage,
    sglext_decoder,
    spans_of,
    text_chunk_decoder,
    text_decoder,
    text_logprobs_decoder,
    whole_decoder,
)
from hintloop_rollout_proxy.engines.splice import add_member, remove_member

#: Ways that no chunk takes cost more than they save.
MAX_VAIN_WAYS = 4


class ReplyReader:
    """Reads one answer of a chat; :class:`TextReader` is its like for completions."""

    def __init__(self, hidden: Hidden, public_model: str, fingerprint: str | None = None) -> None:
        """Hide what ``hidden`` says; ``fingerprint`` is the engine's, where it has one."""
        self.answer = Answer()
        self._hidden = hidden
        self._public_model = public_model
        self._stamp = stamp_of(fingerprint) if hidden.stamped and fingerprint is not None else None
        self._hides_ids = "token_ids" in hidden.choice
        self.quick: QuickWay | None = None
        self._vain_ways = 0
        self._read_chunk: Callable[[bytes], Chunk | TextChunk] = chunk_decoder.decode

    def event(self, data: bytes) -> bytes | None:
        """Read one chunk; see ``Reader.event``."""
        if self.quick is not None:
            quickly = self.quick.read(data)
            if quickly is not None:
                return quickly
        rest, logprobs_text = cut_logprobs(data)
        try:
            chunk = self._read_chunk(rest)
            logprobs = None if logprobs_text is None else self._read_logprobs(logprobs_text)
        except msgspec.DecodeError:
            return self._event(data)
        if self.answer.response_id is None:
            self.answer.response_id = chunk.id
        (seen,) = chunk.choices
        if self._take_chunk(seen, logprobs):
            return None
        out = rest if self._hidden.logprobs else data
        if seen.token_ids is not None and self._hides_ids:
            out = hide_ids(out, b"token_ids", self._hidden.nulled) or hide_slowly(out, self._hidden)
        if seen.finish_reason is not None and self._stamp is not None:
            out = add_member(out, self._stamp)
        if chunk.model != self._public_model:
            out = rename_model(out, chunk.model, self._public_model)
        self._learn(seen, logprobs, data, out)
        return out

    def _learn(
        self, seen: ChunkChoice | TextChunkChoice, logprobs: list[float | None] | None, data: bytes, out: bytes
    ) -> None:
        """Chunks like this one, of which the client sees ``out``, need not be read so carefully."""
        if self.quick is not None and self.quick.used:
            self._vain_ways = 0
        ids = seen.token_ids
        common = logprobs is not None and len(logprobs) == 1 and seen.index == 0 and seen.finish_reason is None
        known_ids = ids is None or (len(ids) == 1 and self._hides_ids)
        known = self._hidden.logprobs and known_ids
        if isinstance(seen, ChunkChoice) and common and known and self._vain_ways < MAX_VAIN_WAYS:
            assert logprobs is not None
            self._vain_ways += 1
            choice, delta = self.answer.choice(0), seen.delta
            known_delta = {"role": choice.said["role"], "content": delta.get("content")}
            alone = all(value is None or value == known_delta.get(name) for name, value in delta.items())
            if alone and choice.fault is None and isinstance(choice.message["content"], str):
                read = (delta.get("content"), logprobs[0], ids[0] if ids else None)
                self.quick = learn(choice, data, out, read)

    def _take_chunk(self, seen: ChunkChoice | TextChunkChoice, logprobs: list[float | None] | None) -> bool:
        """Add the commonest chunk to its choice; whether it says nothing besides what only we asked for."""
        choice, bare = self.answer.choice(seen.index), False
        if isinstance(seen, TextChunkChoice):
            choice.message["content"] = (choice.message["content"] or "") + seen.text
        else:
            delta = seen.delta
            bare = self._hidden.bare_deltas and seen.finish_reason is None and not any(map(_said, delta.values()))
            try:
                choice.merge(delta)
            except UNREADABLE as error:
                choice.note_fault(DropReason.NOT_TRAINABLE, f"unreadable delta: {error!r:.200}")
        if seen.finish_reason is not None:
            choice.finish_reason = seen.finish_reason
        if seen.token_ids is not None:
            choice.add_ids(seen.token_ids)
        if logprobs is not None:
            choice.add_logprobs(logprobs)
        return bare

    def _event(self, data: bytes) -> bytes | None:
        """Any chunk."""
        reply, answer = decode_reply(data), self.answer
        if reply.error not in NOTHING_SAID:
            answer.error = bytes(reply.error).decode(errors="replace")
            return data
        if answer.response_id is None:
            answer.response_id = reply.id
        usage = None if reply.usage in NOTHING_SAID else read_usage(reply.usage)
        if usage is not None:
            answer.usage_completion_tokens = usage
        bare = bool(reply.choices) and self._hidden.bare_deltas
        for seen in reply.choices:
            choice = answer.choice(seen.index)
            bare = self._grow(choice, seen) and bare
            self._take_ids(choice, seen)
        self._take_reply_ids(reply)
        if bare or (not reply.choices and self._is_ours(reply, usage)):
            return None
        out = self._strip(data, reply)
        ended = any(seen.finish_reason is not None for seen in reply.choices)
        return add_member(out, self._stamp) if ended and self._stamp is not None else out

    def body(self, data: bytes) -> bytes:
        """Read a whole answer; see ``Reader.body``."""
        rest, logprobs_text = cut_logprobs(data)
        if logprobs_text is None:
            return self._any_body(data)
        try:
            logprobs = self._read_logprobs(logprobs_text)
            whole = whole_decoder.decode(rest)
        except msgspec.DecodeError:
            return self._any_body(data)
        answer, (seen,) = self.answer, whole.choices
        choice = answer.choice(seen.index)
        choice.message_json, choice.finish_reason = bytes(seen.message), seen.finish_reason
        if not choice.message_json.startswith(b"{"):
            return self._any_body(data)
        choice.response_ids, choice.logprobs = seen.token_ids, logprobs
        answer.response_id, answer.prompt_ids = whole.id, whole.prompt_token_ids
        answer.usage_completion_tokens = None if whole.usage is None else whole.usage.completion_tokens
        answer.finished = True
        out = rest if self._hidden.logprobs else data
        if seen.token_ids is not None and self._hides_ids:
            out = hide_ids(out, b"token_ids", self._hidden.nulled) or hide_slowly(out, self._hidden)
        if whole.prompt_token_ids is not None and "prompt_token_ids" in self._hidden.reply:
            out = hide_ids(out, b"prompt_token_ids", self._hidden.nulled) or hide_slowly(out, self._hidden)
        return out if whole.model == self._public_model else rename_model(out, whole.model, self._public_model)

    def _any_body(self, data: bytes) -> bytes:
        self.answer.choices.clear()
        return self._body(data, decode_reply(data))

    def _body(self, data: bytes, reply: Reply) -> bytes:
        """Any whole answer."""
        answer = self.answer
        answer.response_id = reply.id
        answer.usage_completion_tokens = None if reply.usage is ABSENT else read_usage(reply.usage)
        for seen in reply.choices:
            choice = answer.choice(seen.index)
            choice.finish_reason = seen.finish_reason
            self._take_message(choice, seen)
            self._take_logprobs(choice, seen.logprobs)
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
        if seen.delta not in NOTHING_SAID:
            try:
                delta = delta_decoder.decode(seen.delta)
                choice.merge(delta)
                bare = bare and not any(map(_said, delta.values()))
            except UNREADABLE as error:
                bare = False
                choice.note_fault(DropReason.NOT_TRAINABLE, f"unreadable delta: {error!r:.200}")
        self._take_logprobs(choice, seen.logprobs)
        return bare

    def _take_message(self, choice: Choice, seen: ReplyChoice) -> None:
        message = bytes(seen.message)
        if message.startswith(b"{"):
            choice.message_json = message
        else:
            choice.note_fault(DropReason.NOT_TRAINABLE, f"the answer's message is {message[:40]!r}, no object")

    def _take_logprobs(self, choice: Choice, raw: msgspec.Raw) -> None:
        if raw in NOTHING_SAID:
            return
        try:
            logprobs = self._read_logprobs(raw)
        except UNREADABLE as error:
            choice.note_fault(DropReason.LOGPROB_MISSING, f"unreadable log-probabilities: {error!s:.200}")
            return
        if logprobs is not None:
            choice.add_logprobs(logprobs)

    def _read_logprobs(self, data: msgspec.Raw | bytes) -> list[float | None] | None:
        decoded = chat_logprobs_decoder.decode(data)
        content = None if decoded is None else decoded.content
        return None if content is None else [entry.logprob for entry in content]

    def _take_ids(self, choice: Choice, seen: ReplyChoice) -> None:
        try:
            if seen.token_ids not in NOTHING_SAID:
                choice.add_ids(ids_decoder.decode(seen.token_ids) or [])
            elif seen.response_token_ids not in NOTHING_SAID:
                choice.add_ids(ids_decoder.decode(seen.response_token_ids) or [])
            if seen.meta_info not in NOTHING_SAID:
                choice.spans = spans_of(seen.meta_info) or choice.spans
        except UNREADABLE as error:
            choice.note_fault(DropReason.IDS_MISSING, f"unreadable token ids: {error!s:.200}")
        if seen.prompt_token_ids not in NOTHING_SAID:
            self._take_prompt_ids(seen.prompt_token_ids)

    def _take_prompt_ids(self, raw: msgspec.Raw) -> None:
        answer = self.answer
        if answer.prompt_ids is not None:
            return
        try:
            answer.prompt_ids = ids_decoder.decode(raw)
        except UNREADABLE as error:
            answer.prompt_fault = (DropReason.IDS_MISSING, f"unreadable prompt token ids: {error!s:.200}")

    def _take_reply_ids(self, reply: Reply) -> None:
        """What stands beside the choices: prompt ids, the spans of choice 0, and the late chunk of a stream."""
        answer = self.answer
        if reply.prompt_token_ids not in NOTHING_SAID:
            self._take_prompt_ids(reply.prompt_token_ids)
        try:
            if reply.metadata not in NOTHING_SAID and 0 in answer.choices and not answer.choices[0].spans:
                answer.choices[0].spans = spans_of(reply.metadata)
            if reply.sglext not in NOTHING_SAID:
                self._take_sglext(sglext_decoder.decode(reply.sglext))
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
        if usage is not None or any(getattr(reply, name) not in NOTHING_SAID for name in self._hidden.reply):
            return True
        unwanted = self._hidden.sglext
        return bool(unwanted) and reply.sglext not in NOTHING_SAID and _members(reply.sglext).keys() <= set(unwanted)

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
        if hidden.sglext and not hidden.reply and reply.sglext not in NOTHING_SAID:
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

    def __init__(self, hidden: Hidden, public_model: str, fingerprint: str | None = None) -> None:
        """Like :class:`ReplyReader`."""
        super().__init__(hidden, public_model, fingerprint)
        self._read_chunk = text_chunk_decoder.decode

    def _grow(self, choice: Choice, seen: ReplyChoice) -> bool:
        if seen.finish_reason is not None:
            choice.finish_reason = seen.finish_reason
        self._take_message(choice, seen)
        self._take_logprobs(choice, seen.logprobs)
        return False

    def _take_message(self, choice: Choice, seen: ReplyChoice) -> None:
        if seen.text in NOTHING_SAID:
            return
        try:
            choice.message["content"] = (choice.message["content"] or "") + text_decoder.decode(seen.text)
        except UNREADABLE as error:
            choice.note_fault(DropReason.NOT_TRAINABLE, f"unreadable text: {error!r:.200}")

    def _read_logprobs(self, data: msgspec.Raw | bytes) -> list[float | None] | None:
        decoded = text_logprobs_decoder.decode(data)
        return None if decoded is None else decoded.token_logprobs


def _said(value: object) -> bool:
    return value is not None


def _trim_sglext(data: bytes, sglext: msgspec.Raw, unwanted: tuple[str, ...]) -> bytes:
    members = _members(sglext)
    for name in unwanted:
        if name in members:
            data = remove_member(data, name.encode(), bytes(members[name])) or data
    return data


def _members(raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
