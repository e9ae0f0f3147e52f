"""A capture on its way out of the proxy, its form in the stream and its form on disk."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from hintloop_contract.codec import PackedMessage, pack_message
from hintloop_contract.messages import Capture


class Parcel(msgspec.Struct, frozen=True):
    """A capture with what belongs beside it in the stream entry."""

    capture: Capture
    traceparent: str = ""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Parcel)
#: What encoding a capture may raise.
UNENCODABLE = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)
#: What decoding a spooled record may raise.
UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
#: Bytes of a capture beside its long members.
_REST_BYTES = 1024


def pack_all(parcels: Iterable[Parcel], newest: int) -> tuple[list[PackedMessage], list[tuple[Parcel, Exception]]]:
    """Stream entries, ``newest`` the version of those whose last one is open; and those that cannot be packed."""
    packed: list[PackedMessage] = []
    failed: list[tuple[Parcel, Exception]] = []
    for parcel in parcels:
        capture = parcel.capture
        if capture.version_newest is None:
            capture = msgspec.structs.replace(capture, version_newest=max(newest, capture.version_oldest or 0))
        try:
            packed.append(pack_message(capture, tenant=capture.tenant, traceparent=parcel.traceparent))
        except UNENCODABLE as error:
            failed.append((parcel, error))
    return packed, failed


def encode_record(parcel: Parcel) -> bytes:
    """A spool record; raises one of ``UNENCODABLE``."""
    return _encoder.encode(parcel)


def decode_record(record: bytes) -> Parcel:
    """What :func:`encode_record` wrote; raises one of ``UNDECODABLE``."""
    return _decoder.decode(record)


def weight_of(parcel: Parcel) -> int:
    """Bytes that a parcel occupies, about."""
    capture = parcel.capture
    size = _REST_BYTES + len(capture.request) + len(capture.answer or b"") + len(capture.chat_request or b"")
    for array in (capture.prompt_ids, capture.response_ids, capture.logprobs):
        size += 0 if array is None else len(array.data)
    return size
