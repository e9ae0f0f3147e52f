"""The gRPC definition: generated code is fresh, arrays are packed small and read without a copy."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import hintloop_contract
import numpy as np
import pytest
import zstandard
from hintloop_contract.errors import MessageError
from hintloop_contract.scoring import channel
from hintloop_contract.scoring.packing import PLANES, is_given, to_array, to_tensor
from hintloop_contract.scoring.v1 import scoring_pb2
from hintloop_contract.scoring.v1.scoring_pb2 import ScoreReply, ScoreRequest, Tensor

SOURCE = Path(hintloop_contract.__file__).parents[1]
PROTO = "hintloop_contract/scoring/v1/scoring.proto"


def test_the_generated_code_is_that_of_the_definition(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{SOURCE}", *outputs, PROTO], check=True)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.py*") if path.is_file())
    assert len(made) == 3
    for path in made:
        assert (tmp_path / path).read_text() == (SOURCE / path).read_text(), f"{path} is stale: run `make proto`"


def test_the_definition_only_grows() -> None:
    fields = {
        name: [(field.number, field.name) for field in message.fields]
        for name, message in scoring_pb2.DESCRIPTOR.message_types_by_name.items()
    }
    assert scoring_pb2.DESCRIPTOR.package == "hintloop.scoring.v1"
    assert fields["Tensor"][:3] == [(1, "dtype"), (2, "shape"), (3, "data")]
    request = ["prompt_ids", "response_ids", "top_k", "candidate_ids", "model", "topk_dtype", "request_id"]
    assert fields["ScoreRequest"][:7] == list(enumerate(request, 1))
    reply = ["logprobs", "topk_ids", "topk_logprobs", "tail_logprobs", "model", "dialect", "temperature"]
    reply += ["num_prompt_tokens", "num_response_tokens", "request_id"]
    assert fields["ScoreReply"][:10] == list(enumerate(reply, 1))
    assert fields["ScoreStreamRequest"][:2] == [(1, "sequences"), (2, "part_tokens")]
    part = ["sequence", "start", "reply", "last", "status", "message"]
    assert fields["ScorePart"][:6] == list(enumerate(part, 1))
    service = scoring_pb2.DESCRIPTOR.services_by_name["ForcedScoring"]
    assert service.full_name == channel.SERVICE_NAME
    assert [method.name for method in service.methods][:2] == ["Score", "ScoreStream"]


def test_500_tokens_with_64_candidates_take_at_most_200_kb() -> None:
    rng = np.random.default_rng(0)
    reply = ScoreReply(
        logprobs=to_tensor(-rng.random(500), "float32"),
        topk_ids=to_tensor(rng.integers(0, 151_936, (500, 64)), "int32"),
        topk_logprobs=to_tensor(-rng.random((500, 64)), "float16"),
        tail_logprobs=to_tensor(-rng.random(500), "float32"),
        model="teacher",
        dialect="sglang",
        temperature=1,
        num_prompt_tokens=900,
        num_response_tokens=500,
    )
    assert 500 * 64 * 6 < len(reply.SerializeToString()) <= 200_000


@pytest.mark.parametrize(
    ("dtype", "shape"), [("int32", (3,)), ("float32", (2, 5)), ("float16", (4, 1)), ("int32", (0,))]
)
def test_arrays_come_back_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    wire = Tensor.FromString(to_tensor(values, dtype).SerializeToString())
    array = to_array(wire, "field", dtypes=(dtype,), ndim=len(shape))
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, values)


@pytest.mark.parametrize("dtype", ["int32", "float16", "float32"])
def test_planes_come_back_bit_for_bit_and_smaller(dtype: str) -> None:
    rng = np.random.default_rng(3)
    values = rng.integers(0, 150_000, (500, 64)) if dtype == "int32" else -rng.exponential(4.0, (500, 64))
    plain, encoded = to_tensor(values, dtype), to_tensor(values, dtype, PLANES)
    array = to_array(Tensor.FromString(encoded.SerializeToString()), "field", dtypes=(dtype,), ndim=2)
    np.testing.assert_array_equal(array, np.asarray(values).astype(dtype))
    assert not array.flags.writeable
    assert encoded.encoding == PLANES
    assert len(encoded.data) < 0.95 * len(plain.data)
    assert to_tensor(values[:10], dtype, PLANES).encoding == "", "small arrays stay plain"


def test_damaged_planes_are_refused() -> None:
    whole = to_tensor(np.arange(10_000, dtype=np.int32), "int32", PLANES)
    cut = Tensor(dtype="int32", shape=[10_000], data=whole.data[:-7], encoding=PLANES)
    other_shape = Tensor(dtype="int32", shape=[9_999], data=whole.data, encoding=PLANES)
    huge = Tensor(dtype="int32", shape=[2**31, 4], data=whole.data, encoding=PLANES)
    unknown = Tensor(dtype="int32", shape=[10_000], data=whole.data, encoding="lz4")
    for tensor, words in ((cut, "field: "), (other_shape, "field: "), (huge, "at most"), (unknown, "'lz4', known")):
        with pytest.raises(MessageError, match=words):
            to_array(tensor, "field", dtypes=("int32",), ndim=1 if tensor is not huge else 2)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(("shape", "num_bytes"), [([4], 1 << 28), ([0], 1 << 28), ([4], 8), ([5], 0)])
def test_a_frame_of_another_size_is_refused_before_it_is_decoded(shape: list[int], num_bytes: int, told: bool) -> None:
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=told)
    bomb = Tensor(dtype="int32", shape=shape, data=compressor.compress(bytes(num_bytes)), encoding=PLANES)
    tracemalloc.start()
    try:
        with pytest.raises(MessageError, match="^field: "):
            to_array(bomb, "field", dtypes=("int32",), ndim=1)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_what_stands_behind_a_frame_is_refused() -> None:
    whole = to_tensor(np.arange(10_000, dtype=np.int32), "int32", PLANES)
    more = Tensor(dtype="int32", shape=[10_000], data=whole.data + b"more", encoding=PLANES)
    with pytest.raises(MessageError, match="cannot be read"):
        to_array(more, "field", dtypes=("int32",), ndim=1)


def test_a_shape_beyond_all_counting_is_another_size() -> None:
    none = Tensor(dtype="int32", shape=[2**31, 2**31, 4])
    with pytest.raises(MessageError, match="field: packed array of shape"):
        to_array(none, "field", dtypes=("int32",), ndim=3)


def test_a_decoded_array_is_a_view_of_the_message_s_bytes() -> None:
    from hintloop_contract.tensors import PackedArray, unpack

    tensor = to_tensor(np.arange(6, dtype=np.float32), "float32")
    data = tensor.data
    array = unpack(PackedArray(dtype=tensor.dtype, shape=(2, 3), data=data))
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    assert not array.flags.owndata
    assert not array.flags.writeable
    decoded = to_array(tensor, "field", dtypes=("float32",), ndim=1)
    assert not decoded.flags.owndata
    assert not decoded.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        decoded[0] = 1.0


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (Tensor(dtype="float64", shape=[1], data=b"\0" * 8), "prompt_ids: dtype 'float64', expected int32"),
        (Tensor(), "prompt_ids: dtype ''"),
        (Tensor(dtype="int32", shape=[1, 2], data=b"\0" * 8), "prompt_ids: shape .1, 2., expected 1 axes"),
        (Tensor(dtype="int32", shape=[3], data=b"\0" * 8), "prompt_ids: .* needs 12 bytes, has 8"),
    ],
)
def test_another_array_is_refused_by_the_field_s_name(tensor: Tensor, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        to_array(tensor, "prompt_ids", dtypes=("int32",), ndim=1)


def test_a_field_that_was_not_set_is_known() -> None:
    request = ScoreRequest(prompt_ids=to_tensor([1], "int32"))
    assert is_given(request.prompt_ids)
    assert not is_given(request.candidate_ids)
