import numpy as np
import pytest
from hintloop_contract.errors import MessageError
from hintloop_contract.tensors import DTYPES, PackedArray, pack, unpack
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_int32_comes_back_exactly(values):
    assert unpack(pack(values, "int32") if values else pack(np.empty(0, np.int32), "int32")).tolist() == values


@pytest.mark.parametrize("dtype", DTYPES)
def test_shape_and_dtype_survive(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    back = unpack(pack(array, dtype))
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, array)


def test_float32_is_bit_exact():
    array = np.array([-0.1, -1e-38, -np.inf, np.nan], np.float32)
    assert unpack(pack(array, "float32")).tobytes() == array.tobytes()


@pytest.mark.parametrize("values", [[2**31], [-(2**31) - 1], [0.5], [1.0]])
def test_an_integer_that_does_not_fit_is_refused(values):
    with pytest.raises(MessageError, match="do not fit int32"):
        pack(values, "int32")


def test_unknown_dtype_is_refused():
    with pytest.raises(MessageError, match="float64"):
        pack([1.0], "float64")


def test_size_must_agree_with_shape():
    with pytest.raises(MessageError, match="needs 12 bytes, has 8"):
        unpack(PackedArray(dtype="int32", shape=(3,), data=b"\0" * 8))
