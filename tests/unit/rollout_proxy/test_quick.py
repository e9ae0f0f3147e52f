"""The quick way reads what the careful way reads, and shows what it shows, to the byte."""

from __future__ import annotations

import json
from collections.abc import Callable
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


def with_delta(**members: Any) -> bytes:
    return chunk("x").replace(
        b'"delta":{', b'"delta":{' + json.dumps(members, separators=(",", ":"))[1:-1].encode() + b","
    )


def ids_first(number: int) -> bytes:
    data = chunk("a", token=number)
    ids = b',"token_ids":[%d]' % number
    return data.replace(ids, b"").replace(b'"delta"', ids[1:] + b',"delta"')


#: Each is of one kind all the way, as a template would be.
REPEATED = {
    "reasoning beside the text": lambda i: with_delta(reasoning_content=" hm"),
    "a refusal": lambda i: with_delta(refusal="no "),
    "a tool call": lambda i: with_delta(tool_calls=[{"index": 0, "function": {"arguments": " "}}]),
    "another role": lambda i: with_delta(role="tool"),
    "the text twice": lambda i: chunk("a").replace(
        b'"content":"a"', b'"content":"%b","content":"a"' % b"aabc"[i : i + 1]
    ),
    "two deltas": lambda i: chunk("a").replace(b'"logprobs"', b'"delta":{"content":"z"},"logprobs"'),
    "two log-probabilities": lambda i: chunk("a").replace(b'"finish', b'"logprobs":{"content":[]},"finish'),
    "two lists of choices": lambda i: chunk("a")[:-1] + b',"choices":[]}',
    "bytes of the choice's own": lambda i: chunk("a").replace(b'"finish', b'"bytes":[%d],"finish' % i),
    "a token beside the choices": lambda i: chunk("a")[:-1] + b',"token":"%d"}' % i,
    "bytes beside the choices": lambda i: chunk("a")[:-1] + b',"bytes":[%d]}' % i,
}


@pytest.mark.parametrize("make", REPEATED.values(), ids=REPEATED)
@pytest.mark.parametrize("hidden", [VLLM, SGLANG])
def test_whatever_else_a_chunk_says_is_read_and_shown(make: Callable[[int], bytes], hidden: Hidden) -> None:
    same([make(number) for number in range(4)], hidden)


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


@pytest.mark.parametrize("number", ["-2.5e-300", "-12345678901234567", "-0.8500"])
def test_a_number_is_read_to_its_last_digit_whatever_was_learned_before(number: str) -> None:
    odd = chunk("x").replace(b"-0.5", number.encode())
    same([odd, odd, odd])
    known = [chunk("x").replace(b"-0.5", value) for value in (b"-0.850", b"-0.850", b"-10", b"-1.5e-10", b"-2.5e-300")]
    same(known)
    ids = [chunk("x", token=token) for token in (10**9, 10**9, 10, 2**31 - 1)]
    same(ids)


def test_ids_that_come_in_another_list_are_added_there() -> None:
    reader = reader_of(CHAT, VLLM, "policy")
    for number in range(3):
        reader.event(chunk("a", token=number))
    reader.answer.choices[0].response_ids = [5]
    reader.event(chunk("a", token=6))
    assert reader.answer.choices[0].response_ids == [5, 6]


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
