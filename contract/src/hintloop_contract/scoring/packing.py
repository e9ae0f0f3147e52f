"""Arrays in and out of gRPC messages, with the very packing that messages on streams have.

A decoded array is a read-only view of the message's bytes; nothing is copied.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from hintloop_contract.errors import MessageError
from hintloop_contract.scoring.v1.scoring_pb2 import Tensor
from hintloop_contract.tensors import PackedArray, pack, unpack


def to_tensor(values: Any, dtype: str) -> Tensor:
    """Pack an array or sequence as ``dtype``.

    Raises:
        MessageError: the dtype may not travel, or a value does not fit it.
    """
    packed = pack(values, dtype)
    return Tensor(dtype=packed.dtype, shape=packed.shape, data=packed.data)


def to_array(tensor: Tensor, field: str, *, dtypes: tuple[str, ...], ndim: int) -> NDArray[Any]:
    """The array of a message's ``field``: read-only, of one of ``dtypes`` and with ``ndim`` axes.

    Raises:
        MessageError: it is another array, or its size disagrees with its shape; the message begins with ``field``.
    """
    if tensor.dtype not in dtypes:
        raise MessageError(f"{field}: dtype {tensor.dtype!r}, expected {' or '.join(dtypes)}")
    if len(tensor.shape) != ndim:
        raise MessageError(f"{field}: shape {list(tensor.shape)}, expected {ndim} axes")
    try:
        return unpack(PackedArray(dtype=tensor.dtype, shape=tuple(tensor.shape), data=tensor.data))
    except MessageError as error:
        raise MessageError(f"{field}: {error}") from None


def is_given(tensor: Tensor) -> bool:
    """Whether the field was set at all."""
    return bool(tensor.dtype or tensor.data or tensor.shape)
