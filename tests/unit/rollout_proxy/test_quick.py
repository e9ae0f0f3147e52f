"""The quick way reads what the careful way reads, and shows what it shows, to the byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hintloop_rollout_proxy.engines import reader_of
from hintloop_rollout_proxy.engines.answer import Answer
from hintloop_rollout_proxy.engines.dialect import CHAT, Hidden
from hintloop_rollout_proxy.engines.reader import ReplyReader
from hintloop_rollout_proxy.events import EventRelay
from hypothesis import given
from hypothesis import strategies as st

VLLM = Hidden(
    logprobs=True, nulled=True, choice=("token_ids",), reply=("prompt_token_ids",), usage=True, bare_deltas=True
)
SGLANG = Hidden(logprobs=True, choice=("response_token_ids",), reply=("sglext",), bare_deltas=True)
ENTRY = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


def chunk(text: str, *, kind: str = "vllm", token: int = 7, created: int = 1, **entry: Any) -> bytes:
    """A common chunk of an engine, as compact as it writes it."""
    logprobs = {"content": [{**ENTRY, "token": text, "bytes": list(text.encode(errors="replace")), **entry}]}
    choice: dict[str, Any] = {"index": 0, "delta": {"content": text}, "logprobs": logprobs, "finish_reason": None}
    if kind == "vllm":
        choice["token_ids"] = [token]
    else:
        choice["delta"] = {"role": None, "content": text, "reasoning_content": None, "tool_calls": None}
        choice["matched_stop"] = None
    document = {"id": "chatcmpl-1", "created": created, "model": "engine/m", "choices": [choice]}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")


def read(chunks: list[bytes], hidden: Hidden, *, quickly: bool, blocks: bool = True) -> tuple[bytes, Answer, bool]:
    """What a client sees of ``chunks``, what was read, and whether the quick way took any."""
    reader = reader_of(CHAT, hidden, "policy")
    assert isinstance(reader, ReplyReader)
    if not quickly:
        reader._vain_ways = 99
    relay = EventRelay(reader)
    stream = b"".join(b"data: %b\n\n" % data for data in chunks)
    size = 999_999 if blocks else 64
    out = b"".join(relay.feed(stream[start : start + size]) for start in range(0, len(stream), size))
    return out, reader.answer, reader.quick is not None and reader.quick.used


def same(chunks: list[bytes], hidden: Hidden = VLLM, *, blocks: bool = True) -> bool:
    """Whether the quick way was taken; whatever way, what is read and shown is the same."""
    out, answer, used = read(chunks, hidden, quickly=True, blocks=blocks)
    careful_out, careful, _ = read(chunks, hidden, quickly=False)
    assert out == careful_out
    for found, wanted in zip(answer.choices.values(), careful.choices.values(), strict=True):
        assert found.message == wanted.message
        assert (found.response_ids, found.logprobs, found.fault) == (
            wanted.response_ids,
            wanted.logprobs,
            wanted.fault,
        )
    return used


texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
numbers = st.one_of(
    st.floats(-1e5, 0), st.integers(-9999, 0), st.just(-0.0), st.just(-1e-7), st.just(-2.5e-300), st.just(-9999.0)
)


@given(
    st.lists(st.tuples(texts, numbers, st.integers(0, 2**31 - 1)), min_size=3, max_size=12),
    st.sampled_from(["vllm", "sglang"]),
    st.booleans(),
)
def test_whatever_the_engine_says(said: list[tuple[str, float, int]], kind: str, blocks: bool) -> None:
    chunks = [chunk(text, kind=kind, token=token, logprob=number) for text, number, token in said]
    same([chunk("begin", kind=kind), *chunks], VLLM if kind == "vllm" else SGLANG, blocks=blocks)


@pytest.mark.parametrize(("kind", "hidden"), [("vllm", VLLM), ("sglang", SGLANG)])
@pytest.mark.parametrize("blocks", [True, False])
def test_common_chunks_of_both_engines_take_it(kind: str, hidden: Hidden, blocks: bool) -> None:
    assert same(
        [chunk(text, kind=kind) for text in ("a", ' "quoted" \\ ', "\n\n", "日本", "</s>")], hidden, blocks=blocks
    )


def test_it_goes_on_after_a_chunk_of_another_kind_and_in_the_next_second() -> None:
    bare = b'{"id":"chatcmpl-1","created":1,"model":"engine/m","choices":[],"usage":{"completion_tokens":3}}'
    assert same([chunk("a"), chunk("b"), bare, chunk("c"), chunk("d", created=2), chunk("e", created=2)])


ODD = {
    "no log-probability": chunk("x", logprob=None),
    "not a number": chunk("x").replace(b"-0.5", b"NaN"),
    "beyond a double": chunk("x").replace(b"-0.5", b"-1e999"),
    "many digits": chunk("x").replace(b"-0.5", b"-" + b"9" * 400),
    "alternatives": chunk("x", top_logprobs=[{"token": "y", "logprob": -1.0, "bytes": None}]),
    "id beyond its type": chunk("x", token=2**31),
    "large id": chunk("x", token=2**31 - 1),
    "negative id": chunk("x", token=-1),
    "two tokens": chunk("x").replace(b"[7]", b"[7,8]"),
    "no tokens": chunk("x").replace(b"[7]", b"[]"),
    "no text": chunk(""),
    "another choice": chunk("x").replace(b'"index":0', b'"index":1'),
    "an ending": chunk("x").replace(b'"finish_reason":null', b'"finish_reason":"stop"'),
    "a lone surrogate": chunk("x").replace(b'"content":"x"', b'"content":"\\ud800"'),
    "an escape that JSON has not": chunk("x").replace(b'"content":"x"', b'"content":"\\q"'),
    "bytes that are no UTF-8": chunk("x").replace(b'"content":"x"', b'"content":"\xff"'),
    "keys in the text": chunk('","logprobs":{"content":[{"token":"z","logprob":-9,"bytes":[1]'),
    "a longer list of members": chunk("x")[:-1] + b',"more":{"logprob":-3}}',
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("first", [False, True])
def test_what_does_not_follow_the_template_is_read_with_care(odd: bytes, first: bool) -> None:
    common = [chunk(text) for text in ("a", "b", "c")]
    same([odd, *common] if first else [*common, odd, *common])


def test_nothing_of_it_is_taken_where_the_client_asked_for_the_numbers() -> None:
    chunks = [chunk(text) for text in ("a", "b", "c")]
    assert not same(chunks, Hidden(nulled=True, choice=("token_ids",)))
    assert not same(chunks, Hidden(logprobs=True, nulled=True))
    shown, _, _ = read(chunks, Hidden(nulled=True), quickly=True)
    assert shown.count(b'"logprob":-0.5') == 3 and shown.count(b'"token_ids":[7]') == 3


def test_an_engine_whose_chunks_all_differ_is_given_up() -> None:
    chunks = [chunk("x")[:-1] + b',"at":%d}' % number for number in range(40)]
    assert not same(chunks)
    reader = reader_of(CHAT, VLLM, "policy")
    assert isinstance(reader, ReplyReader)
    for data in chunks:
        reader.event(data)
    assert reader._vain_ways == 4


def test_a_long_text_is_whole_whenever_it_is_looked_at() -> None:
    reader = reader_of(CHAT, VLLM, "policy")
    for number in range(50):
        assert reader.event(chunk(f"{number} ")) is not None
        assert reader.answer.choices[0].message["content"] == "".join(f"{known} " for known in range(number + 1))
    assert json.loads(reader.answer.choices[0].assistant_json())["content"].endswith("48 49 ")
