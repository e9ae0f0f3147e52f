"""Ids that this proxy gives to what it answers on translated APIs, so that what an agent echoes names its answer.

Every id of one answer carries the answer's *core*: ``resp_<core>``, ``msg_<core>``, ``fc_<core>002``, and the
signature of a thinking block. Owns minting and reading them back; remembers nothing.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import zlib

#: The mark tells our cores from the ids of engines and vendors.
MARK = "hl"
_CORE = MARK + r"[0-9a-f]{30}"
_ID = re.compile(rf"^[a-z]{{2,5}}_({_CORE})(\d{{3,}})?$")
_SIGNED = re.compile(rf"^({_CORE})\.(\d{{3,}})$")
_SEALED = "hlr1."
#: No reasoning is longer; what unpacks to more is none of ours.
MAX_REASONING_BYTES = 4 * 1024 * 1024


def new_core() -> str:
    """A core: 32 letters and digits, never given twice."""
    return MARK + secrets.token_hex(15)


def response_id(core: str) -> str:
    """The id of an answer on the Responses API."""
    return f"resp_{core}"


def message_id(core: str) -> str:
    """The id of an answer on the Messages API."""
    return f"msg_{core}"


def item_id(kind: str, core: str, index: int) -> str:
    """The id of output item ``index``; ``kind`` is the vendor's prefix (``msg``, ``rs``, ``fc``, ``ctc``)."""
    return f"{kind}_{core}{index:03d}"


def call_id(core: str, index: int) -> str:
    """An id for a tool call to which the engine gave none: letters and digits, at most 40."""
    return f"call{core}{index:03d}"


def core_of(identifier: str) -> str | None:
    """The core in an id or a signature that we minted, or ``None``."""
    found = _ID.match(identifier)
    if found is not None:
        return found.group(1)
    return _core_of_signature(identifier)


def index_of(identifier: str) -> int | None:
    """The output index in an item id that we minted, or ``None``."""
    found = _ID.match(identifier)
    return int(found.group(2)) if found is not None and found.group(2) else None


def signature(core: str, index: int) -> str:
    """The signature of thinking block ``index``: opaque to agents, which send it back with the block."""
    return base64.b64encode(f"{core}.{index:03d}".encode()).decode()


def _core_of_signature(text: str) -> str | None:
    try:
        found = _SIGNED.match(base64.b64decode(text, validate=True).decode("ascii"))
    except (binascii.Error, ValueError):
        return None
    return found.group(1) if found is not None else None


def seal_reasoning(text: str) -> str:
    """Reasoning as ``encrypted_content``: agents that keep only that part bring it back whole. Packed, not secret."""
    return _SEALED + base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"))).decode()


def open_reasoning(sealed: str) -> str | None:
    """The reasoning in an ``encrypted_content`` that we sealed; ``None`` when it is not ours."""
    if not sealed.startswith(_SEALED):
        return None
    try:
        packed = base64.b64decode(sealed[len(_SEALED) :], validate=True)
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, MAX_REASONING_BYTES)
        return None if unpacker.unconsumed_tail else text.decode("utf-8", "surrogatepass")
    except (binascii.Error, zlib.error, ValueError):
        return None
