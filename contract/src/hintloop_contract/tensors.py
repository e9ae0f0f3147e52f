"""Packed arrays: how a numpy array travels inside a message. Owns packing alone; no torch is imported here.

numpy is imported by whoever packs or unpacks: it takes 12 MB, and the rollout proxy does neither.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from hintloop_contract.errors import MessageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Little-endian dtypes that may travel. Anything else is refused by :func:`pack` and :func:`unpack`.
DTYPES = ("int32", "int64", "float16", "float32")


class PackedArray(msgspec.Struct, frozen=True, kw_only=True):
    """A dense array: ``dtype`` (one of :data:`DTYPES`), ``shape``, and C-ordered little-endian ``data``.

    Example: ``PackedArray(dtype="int32", shape=(2,), data=b"\\x01\\0\\0\\0\\x02\\0\\0\\0")`` is ``[1, 2]``.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __len__(self) -> int:
        """Length of the first axis."""
        return self.shape[0] if self.shape else 0


def pack(values: Any, dtype: str) -> PackedArray:
    """Pack an array or sequence as ``dtype``.

    Raises:
        MessageError: the dtype may not travel, or a value does not fit it (an integer out of range).
    """
    if dtype not in DTYPES:
        raise MessageError(f"array dtype {dtype!r} cannot travel; use one of {', '.join(DTYPES)}")
    import numpy as np

    source = np.asarray(values)
    target = np.dtype(dtype).newbyteorder("<")
    if target.kind == "i" and source.size:
        info = np.iinfo(dtype)
        if source.dtype.kind not in "iu" or source.min() < info.min or source.max() > info.max:
            raise MessageError(f"values of dtype {source.dtype} do not fit {dtype}")
    array = np.ascontiguousarray(source, dtype=target)
    return PackedArray(dtype=dtype, shape=array.shape, data=array.tobytes())


def unpack(packed: PackedArray) -> NDArray[Any]:
    """Give the array back, read-only, in native byte order.

    Raises:
        MessageError: the dtype is unknown or the data's size disagrees with the shape.
    """
    import numpy as np

    if packed.dtype not in DTYPES:
        raise MessageError(f"packed array has dtype {packed.dtype!r}; known are {', '.join(DTYPES)}")
    dtype = np.dtype(packed.dtype).newbyteorder("<")
    expected = math.prod(packed.shape) * dtype.itemsize
    if len(packed.data) != expected:
        raise MessageError(f"packed array of shape {packed.shape} needs {expected} bytes, has {len(packed.data)}")
    return np.frombuffer(packed.data, dtype=dtype).reshape(packed.shape)
