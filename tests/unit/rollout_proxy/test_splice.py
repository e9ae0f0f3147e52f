"""Cutting members out of JSON text."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hintloop_rollout_proxy.engines.splice import remove_member, replace_member
from hypothesis import given
from hypothesis import strategies as st

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


@given(
    before=st.dictionaries(st.text(), values, max_size=3),
    value=values,
    after=st.dictionaries(st.text(), values, max_size=3),
)
def test_what_stays_is_unchanged(before: dict[str, Any], value: Any, after: dict[str, Any]) -> None:
    document = {**before, "token_ids": value, **{k: v for k, v in after.items() if k not in before}}
    data = json.dumps(document, separators=(",", ":")).encode()
    raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])["token_ids"]
    removed = remove_member(data, b"token_ids", bytes(raw))
    if removed is not None:
        assert json.loads(removed) == {k: v for k, v in document.items() if k != "token_ids"}
    replaced = replace_member(data, b"token_ids", bytes(raw), b"null")
    if replaced is not None:
        assert json.loads(replaced) == {**document, "token_ids": None}
    plain = "token_ids" not in json.dumps([before, after, value])
    assert not plain or (removed is not None and replaced is not None)


def test_a_text_that_looks_like_a_member_is_left_alone() -> None:
    data = json.dumps({"content": '"token_ids":[1]', "token_ids": [1]}, separators=(",", ":")).encode()
    removed = remove_member(data, b"token_ids", b"[1]")
    assert removed is not None
    assert json.loads(removed) == {"content": '"token_ids":[1]'}
