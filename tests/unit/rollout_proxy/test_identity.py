"""Ids of translated answers: unique, and read back for what they are."""

from __future__ import annotations

import base64

import pytest
from hintloop_rollout_proxy.apis import identity
from hypothesis import given
from hypothesis import strategies as st


def test_every_id_of_an_answer_names_it() -> None:
    core = identity.new_core()
    signed = identity.signature(core, 2)
    ids = [identity.response_id(core), identity.message_id(core), identity.item_id("ctc", core, 1000), signed]
    assert [identity.core_of(name) for name in ids] == [core] * 4
    assert [identity.index_of(name) for name in ids] == [None, None, 1000, None]
    assert identity.new_core() != core


def test_a_minted_call_id_survives_agents_that_strip_and_cut() -> None:
    name = identity.call_id(identity.new_core(), 7)
    assert name.isalnum()
    assert len(name) <= 40


@pytest.mark.parametrize(
    "other", ["", "resp_1", "resp_" + "a" * 32, "msg_x", "ErUBCkYIBxgCIkD=", base64.b64encode(b"hl.1").decode()]
)
def test_ids_of_others_are_not_ours(other: str) -> None:
    assert identity.core_of(other) is None
    assert identity.index_of(other) is None


@given(st.text())
def test_sealed_reasoning_is_opened_whole(text: str) -> None:
    assert identity.open_reasoning(identity.seal_reasoning(text)) == text
