import base64
import json
from pathlib import Path

import msgspec
import pytest
from hintloop_contract.codec import (
    COMPRESS_ABOVE_BYTES,
    FIELDS,
    decode_fields,
    decode_payload,
    encode_payload,
    field_values,
    pack_message,
)
from hintloop_contract.errors import MessageError
from hintloop_contract.messages import Capture, Drop, JudgedTurn, LinkedTurn, Sample, TurnRecord
from hintloop_contract.tensors import unpack

RECORDED = Path(__file__).parents[2] / "fixtures" / "messages"
KINDS = {kind.__name__: kind for kind in (Capture, Drop, JudgedTurn, LinkedTurn, Sample, TurnRecord)}


def drop(detail: str = "") -> Drop:
    return Drop(turn_id="t1", stage="link", reason="no_next_state", detail=detail)


def fields(message) -> dict[bytes, bytes]:
    values = field_values(pack_message(message, tenant="a", traceparent=""), "p")
    return {name.encode(): value for name, value in zip(FIELDS, values, strict=True)}


def test_small_payload_is_plain_and_large_is_compressed():
    small, large = encode_payload(drop("x")), encode_payload(drop("x" * 10_000))
    assert msgspec.msgpack.decode(small)["reason"] == "no_next_state"
    assert len(large) < COMPRESS_ABOVE_BYTES
    assert decode_payload(large, Drop) == drop("x" * 10_000)


def test_entry_comes_back():
    assert decode_fields(fields(drop()), Drop) == drop()


def test_previous_version_is_read_and_others_are_refused():
    entry = fields(drop())
    assert decode_fields({**entry, b"v": b"0"}, Drop) == drop()
    with pytest.raises(MessageError, match="upgrade the reader"):
        decode_fields({**entry, b"v": b"2"}, Drop)


@pytest.mark.parametrize("damage", [{b"data": b"\x28\xb5\x2f\xfdnonsense"}, {b"data": b"\xc1"}, {b"v": b"one"}])
def test_damage_is_a_message_error(damage):
    with pytest.raises(MessageError):
        decode_fields({**fields(drop()), **damage}, Drop)


def test_missing_field_is_named():
    entry = fields(drop())
    del entry[b"data"]
    with pytest.raises(MessageError, match="data"):
        decode_fields(entry, Drop)


@pytest.mark.parametrize("path", sorted(RECORDED.rglob("*.json")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_messages_still_decode(path):
    recorded = json.loads(path.read_text())
    message = decode_payload(base64.b64decode(recorded["payload"]), KINDS[path.stem])
    for name, value in recorded["values"].items():
        assert getattr(message, name) == value
    for name, values in recorded["arrays"].items():
        assert unpack(getattr(message, name)).tolist() == values


def test_every_kind_has_a_recorded_message():
    assert {path.stem for path in (RECORDED / "v1").glob("*.json")} == set(KINDS)
