"""Between messages and stream fields. Owns the entry format: `v, turn_id, policy, tenant, traceparent, data`."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec
import zstandard

from hintloop_contract.errors import MessageError
from hintloop_contract.messages import MESSAGE_VERSION, Message

#: Payloads above this many bytes are compressed.
COMPRESS_ABOVE_BYTES = 1024
#: Payloads up to this many bytes are compressed at level -1: half the time of level 1, for a fifth more bytes.
SHORT_BYTES = 16 * 1024
#: Largest payload accepted after decompression, bytes.
MAX_PAYLOAD_BYTES = 256 * 1024 * 1024

#: Names of an entry's fields.
FIELDS = ("v", "turn_id", "policy", "tenant", "traceparent", "data")
_VERSION = str(MESSAGE_VERSION).encode()
# A msgpack map never begins with these bytes, so compressed and plain payloads tell themselves apart.
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()


_local = threading.local()


def _compressor(num_bytes: int) -> zstandard.ZstdCompressor:
    """This thread's compressor: making one costs as much as using it, and two threads must not share one."""
    name, level = ("short", -1) if num_bytes <= SHORT_BYTES else ("long", 1)
    found: zstandard.ZstdCompressor | None = getattr(_local, name, None)
    if found is None:
        found = zstandard.ZstdCompressor(level=level)
        setattr(_local, name, found)
    return found


class PackedMessage(msgspec.Struct, frozen=True):
    """A message as its stream entry will hold it: ``payload`` is what :func:`encode_payload` made of it."""

    turn_id: str
    payload: bytes
    tenant: str = "default"
    traceparent: str = ""


def pack_message(message: Message, *, tenant: str = "default", traceparent: str = "") -> PackedMessage:
    """Encode ``message`` now, to be appended later.

    Raises:
        msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError: it cannot be encoded.
    """
    return PackedMessage(message.turn_id, encode_payload(message), tenant, traceparent)


def encode_payload(value: Any) -> bytes:
    """Encode a struct as msgpack, compressed with zstd above 1 kB."""
    payload = _encoder.encode(value)
    if len(payload) > COMPRESS_ABOVE_BYTES:
        return _compressor(len(payload)).compress(payload)
    return payload


def decode_payload(data: bytes, kind: type[T]) -> T:
    """Decode what :func:`encode_payload` wrote.

    Raises:
        MessageError: the bytes are damaged, or are not a ``kind``.
    """
    try:
        if data.startswith(_ZSTD_MAGIC):
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_PAYLOAD_BYTES)
        return msgspec.msgpack.decode(data, type=kind)
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise MessageError(f"payload of {len(data)} bytes is not a {kind.__name__}: {error}") from error


def field_values(packed: PackedMessage, policy: str) -> tuple[bytes, ...]:
    """Values of one stream entry, in the order of ``FIELDS``."""
    return (
        _VERSION,
        packed.turn_id.encode(),
        policy.encode(),
        packed.tenant.encode(),
        packed.traceparent.encode(),
        packed.payload,
    )


def decode_fields(fields: dict[bytes, bytes], kind: type[T]) -> T:
    """Decode the message of an entry written by this version or the one before.

    Raises:
        MessageError: a field is missing, the version is not readable, or the payload is damaged.
    """
    try:
        version, data = int(fields[b"v"]), fields[b"data"]
    except (KeyError, ValueError) as error:
        raise MessageError(f"stream entry lacks a usable field: {error}") from error
    if version not in (MESSAGE_VERSION, MESSAGE_VERSION - 1):
        raise MessageError(
            f"entry version {version} is not readable here (this build reads {MESSAGE_VERSION - 1} and "
            f"{MESSAGE_VERSION}); upgrade the reader before the writer"
        )
    return decode_payload(data, kind)
