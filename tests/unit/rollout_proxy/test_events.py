"""Cutting a stream into events, whatever its line ends and wherever it is cut."""

from __future__ import annotations

import pytest
from hintloop_rollout_proxy.engines import reader_of
from hintloop_rollout_proxy.engines.dialect import CHAT, Hidden
from hintloop_rollout_proxy.events import EventRelay
from hypothesis import given
from hypothesis import strategies as st

EVENT = b'{"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[1]}]}'
SHOWN = b'{"choices":[{"index":0,"delta":{"content":"a"}}]}'


def make_relay() -> EventRelay:
    return EventRelay(reader_of(CHAT, Hidden(logprobs=True, choice=("token_ids",)), "policy"))


@given(st.lists(st.integers(0, 400), max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_cuts_change_nothing(cuts: list[int], end: bytes) -> None:
    stream = end.join([b": ping", b"", b"event: e", b"data: " + EVENT, b"id: 1", b"", b"data: [DONE]", b"", b""])
    shown = end.join([b": ping", b"", b"event: e", b"id: 1", b"data: " + SHOWN, b"", b"data: [DONE]", b"", b""])
    relay, out, start = make_relay(), b"", 0
    for cut in [*sorted(cuts), len(stream)]:
        out += relay.feed(stream[start:cut])
        start = max(start, cut)
    assert out + relay.rest() == shown
    assert relay._reader.answer.finished


@pytest.mark.parametrize(
    ("left", "shown"),
    [
        (b"data: " + EVENT, b"data: " + SHOWN),
        (b"data: " + EVENT[:-5], b""),
        (b"data: [DONE]", b"data: [DONE]"),
        (b": ping", b": ping"),
    ],
)
def test_what_is_left_without_a_border(left: bytes, shown: bytes) -> None:
    relay = make_relay()
    assert relay.feed(left) == b""
    assert relay.rest() == shown


def test_event_goes_out_as_soon_as_it_is_whole() -> None:
    relay = make_relay()
    assert relay.feed(b"data: " + EVENT + b"\r\n\r\n" + b"data: ") == b"data: " + SHOWN + b"\r\n\r\n"


def test_payload_over_several_lines_is_read_and_hidden() -> None:
    relay = make_relay()
    out = relay.feed(b"data: " + EVENT[:10] + b"\ndata: " + EVENT[10:] + b"\n\n")
    assert b"token_ids" not in out and b'"content":"a"' in out
    assert relay._reader.answer.choices[0].response_ids == [1]
