"""Reads answers of SGLang's ``/generate``: one object an answer, a list of them for several, cumulative in a stream."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hintloop_contract.messages import DropReason

from hintloop_rollout_proxy.engines.answer import Answer, Choice
from hintloop_rollout_proxy.engines.dialect import ABSENT, RAW_NULL, Hidden
from hintloop_rollout_proxy.engines.hiding import UNREADABLE, hide_members
from hintloop_rollout_proxy.engines.quick import QuickWay
from hintloop_rollout_proxy.engines.reply import TokenIds, spans_of
from hintloop_rollout_proxy.engines.splice import reserialise

#: What ``return_logprob`` adds to ``meta_info``.
LOGPROB_MEMBERS = ("input_token_logprobs", "output_token_logprobs", "output_token_logprobs_length")


class FinishReason(msgspec.Struct):
    """``meta_info.finish_reason``; SGLang says more by its type."""

    type: str | None = None


class MetaInfo(msgspec.Struct):
    """``meta_info`` of one answer."""

    id: str | None = None
    finish_reason: FinishReason | None = None
    completion_tokens: int | None = None
    input_token_logprobs: msgspec.Raw = ABSENT
    output_token_logprobs: msgspec.Raw = ABSENT
    output_token_logprobs_length: msgspec.Raw = ABSENT


class Piece(msgspec.Struct):
    """One answer, or a chunk of one: everything so far, unless the engine streams increments."""

    text: str | None = None
    index: int | None = None
    output_ids: TokenIds | None = None
    meta_info: msgspec.Raw = ABSENT
    prompt_token_ids: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


_pieces_decoder = msgspec.json.Decoder(Piece | list[Piece])
_meta_decoder = msgspec.json.Decoder(MetaInfo | None)
_ids_decoder = msgspec.json.Decoder(TokenIds | None)
_entries_decoder = msgspec.json.Decoder(list[tuple[float | None, int | None, str | None]] | None)


def decode_pieces(data: bytes) -> list[Piece]:
    """Decode an answer like ``reply.decode_reply``; several answers stand in order."""
    try:
        pieces = _pieces_decoder.decode(data)
    except msgspec.DecodeError:
        pieces = _pieces_decoder.decode(msgspec.json.encode(json.loads(data)))
    return pieces if isinstance(pieces, list) else [pieces]


class GenerateReader:
    """Reads one answer of ``/generate``."""

    def __init__(self, hidden: Hidden) -> None:
        """Hide what ``hidden`` says; there is no model name in these answers."""
        self.answer = Answer()
        self.quick: QuickWay | None = None
        self._hidden = hidden

    def event(self, data: bytes) -> bytes | None:
        """Read one chunk; see ``Reader.event``."""
        return self._read(data)

    def body(self, data: bytes) -> bytes:
        """Read a whole answer; see ``Reader.body``."""
        data = self._read(data)
        self.answer.finished = True
        return data

    def hide(self, data: bytes) -> bytes | None:
        """Hide without reading; see ``Reader.hide``."""
        try:
            return reserialise(data, self._hide)
        except UNREADABLE:
            names = (*LOGPROB_MEMBERS, *self._hidden.reply)
            return None if any(f'"{name}"'.encode() in data for name in names) else data

    def ended(self) -> None:
        """A stream without ``[DONE]`` was cut."""

    def _read(self, data: bytes) -> bytes:
        pieces = decode_pieces(data)
        unasked: list[tuple[str, msgspec.Raw]] = []
        for place, piece in enumerate(pieces):
            if piece.error is not ABSENT and piece.error != RAW_NULL:
                self.answer.error = bytes(piece.error).decode(errors="replace")
                continue
            meta = self._take(piece, place if piece.index is None else piece.index)
            if self._hidden.logprobs and meta is not None:
                unasked += [(name, getattr(meta, name)) for name in LOGPROB_MEMBERS]
            unasked += [(name, getattr(piece, name)) for name in self._hidden.reply]
        out = hide_members(data, [(name, raw) for name, raw in unasked if raw is not ABSENT], nulled=False)
        return reserialise(data, self._hide) if out is None else out

    def _take(self, piece: Piece, index: int) -> MetaInfo | None:
        answer = self.answer
        choice = answer.choice(index)
        if answer.prompt_ids is None and piece.prompt_token_ids is not ABSENT:
            try:
                answer.prompt_ids = _ids_decoder.decode(piece.prompt_token_ids)
            except UNREADABLE as error:
                answer.prompt_fault = (DropReason.IDS_MISSING, f"unreadable prompt token ids: {error!s:.200}")
        meta = _meta_decoder.decode(piece.meta_info) if piece.meta_info is not ABSENT else None
        if meta is None:
            return None
        answer.response_id = answer.response_id or meta.id
        if meta.finish_reason is not None:
            choice.finish_reason = meta.finish_reason.type
        try:
            self._grow(choice, piece, meta)
        except UNREADABLE as error:
            choice.note_fault(DropReason.LOGPROB_MISSING, f"unreadable log-probabilities: {error!s:.200}")
        return meta

    def _grow(self, choice: Choice, piece: Piece, meta: MetaInfo) -> None:
        ids = piece.output_ids
        choice.num_tokens = meta.completion_tokens
        first = choice.response_ids is None
        whole = first or ids is None or len(ids) == meta.completion_tokens
        if piece.text is not None:
            choice.message["content"] = piece.text if whole else (choice.message["content"] or "") + piece.text
        if whole:
            choice.response_ids = ids if ids is not None else choice.response_ids
        elif ids is not None:
            choice.add_ids(ids)
        # A cumulative stream repeats every number in every chunk: reading the last one is enough. The first chunk
        # of a stream of increments cannot be told from it.
        if first or not whole or meta.finish_reason is not None:
            choice.spans = spans_of(piece.meta_info) or choice.spans
            self._take_logprobs(choice, meta.output_token_logprobs, whole)

    @staticmethod
    def _take_logprobs(choice: Choice, raw: msgspec.Raw, whole: bool) -> None:
        entries = _entries_decoder.decode(raw) if raw is not ABSENT else None
        if entries is None:
            return
        logprobs = [entry[0] for entry in entries]
        if whole:
            choice.logprobs = logprobs
        else:
            choice.add_logprobs(logprobs)

    def _hide(self, document: Any) -> None:
        for piece in document if isinstance(document, list) else [document]:
            if not isinstance(piece, dict):
                continue
            for name in self._hidden.reply:
                piece.pop(name, None)
            meta = piece.get("meta_info")
            if self._hidden.logprobs and isinstance(meta, dict):
                for name in LOGPROB_MEMBERS:
                    meta.pop(name, None)
