"""Arrays in and out of gRPC messages, with the very packing that messages on streams have.

A decoded array is a read-only view of the message's bytes; nothing is copied. Larger arrays may be encoded for the
wire (:data:`PLANES`): ids and log-probabilities differ in their low bytes and agree in the high ones, which a
general compressor finds once they stand together.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from hintloop_contract.errors import MessageError
from hintloop_contract.scoring.channel import MAX_MESSAGE_BYTES
from hintloop_contract.scoring.v1.scoring_pb2 import Tensor
from hintloop_contract.tensors import PackedArray, pack, unpack

#: Byte planes in one Zstandard frame.
PLANES = "planes-zstd"
#: Encodings of ``Tensor.encoding``; the empty one is the plain array.
ENCODINGS = ("", PLANES)
#: Smaller arrays are never encoded, bytes.
ENCODE_FROM = 16 * 1024
#: Larger arrays than a plain message could hold are refused before anything is decoded, bytes.
MAX_DECODED = MAX_MESSAGE_BYTES
#: What a Zstandard frame without its size is said to have.
_UNTOLD = -1


def to_tensor(values: Any, dtype: str, encoding: str = "") -> Tensor:
    """Pack an array or sequence as ``dtype``; from :data:`ENCODE_FROM` bytes on in ``encoding``.

    Raises:
        MessageError: the dtype may not travel, or a value does not fit it.
    """
    packed = pack(values, dtype)
    if encoding != PLANES or len(packed.data) < ENCODE_FROM:
        return Tensor(dtype=packed.dtype, shape=packed.shape, data=packed.data)
    return Tensor(dtype=packed.dtype, shape=packed.shape, data=_to_planes(packed), encoding=PLANES)


def _to_planes(packed: PackedArray) -> bytes:
    values_NB = np.frombuffer(packed.data, np.uint8).reshape(-1, np.dtype(packed.dtype).itemsize)
    return zstandard.ZstdCompressor(level=1).compress(values_NB.T.tobytes())


def _plain_data(tensor: Tensor) -> bytes:
    """The array's bytes: the message's own where they are plain.

    Raises:
        MessageError: the encoding is not known, or its data is damaged.
    """
    if not tensor.encoding:
        return tensor.data
    if tensor.encoding != PLANES:
        raise MessageError(f"encoding {tensor.encoding!r}, known are {PLANES!r} and none")
    return _from_planes(tensor)


def _from_planes(tensor: Tensor) -> bytes:
    itemsize = np.dtype(tensor.dtype).itemsize
    size = itemsize * math.prod(tensor.shape)
    if size > MAX_DECODED:
        raise MessageError(f"{size} bytes decoded, at most {MAX_DECODED} are read")
    try:
        # A frame that tells its own size is decoded to that size, whatever the limit: so it is looked at before.
        told = zstandard.frame_content_size(tensor.data)
        if told not in (size, _UNTOLD):
            raise MessageError(f"{told} bytes in {PLANES}, the shape says {size}")
        data = zstandard.ZstdDecompressor().decompress(tensor.data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MessageError(f"{PLANES} data cannot be read: {error}") from None
    if len(data) != size:
        raise MessageError(f"{len(data)} bytes after {PLANES}, the shape says {size}")
    return np.frombuffer(data, np.uint8).reshape(itemsize, -1).T.tobytes()


def to_array(tensor: Tensor, field: str, *, dtypes: tuple[str, ...], ndim: int) -> NDArray[Any]:
    """The array of a message's ``field``: read-only, of one of ``dtypes`` and with ``ndim`` axes.

    Raises:
        MessageError: it is another array, or its size disagrees with its shape; the message begins with ``field``.
    """
    return unpack(to_packed(tensor, field, dtypes=dtypes, ndim=ndim))


def to_packed(tensor: Tensor, field: str, *, dtypes: tuple[str, ...], ndim: int) -> PackedArray:
    """The same, as it travels in messages on streams. Raises as :func:`to_array`."""
    if tensor.dtype not in dtypes:
        raise MessageError(f"{field}: dtype {tensor.dtype!r}, expected {' or '.join(dtypes)}")
    if len(tensor.shape) != ndim:
        raise MessageError(f"{field}: shape {list(tensor.shape)}, expected {ndim} axes")
    try:
        packed = PackedArray(dtype=tensor.dtype, shape=tuple(tensor.shape), data=_plain_data(tensor))
        unpack(packed)
    except MessageError as error:
        raise MessageError(f"{field}: {error}") from None
    return packed


def is_given(tensor: Tensor) -> bool:
    """Whether the field was set at all."""
    return bool(tensor.dtype or tensor.data or tensor.shape)
