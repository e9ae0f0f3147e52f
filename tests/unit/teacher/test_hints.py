import copy
from typing import Any

import pytest
from hintloop_teacher.errors import NoHintPlaceError
from hintloop_teacher.hints import hint_block, with_hint


def test_braces_stay_as_they_are() -> None:
    assert hint_block("\n[{hint}] {x} {{y}}", "use {a} and {hint}") == "\n[use {a} and {hint}] {x} {{y}}"


def test_only_the_last_user_message_changes() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "user", "content": "two", "name": "sam"},
        {"role": "tool", "tool_call_id": "c1", "content": "out"},
    ]
    before = copy.deepcopy(messages)
    changed = with_hint(messages, "+H")
    assert messages == before
    assert changed == [*before[:2], {"role": "user", "content": "two+H", "name": "sam"}, before[3]]


def test_the_last_text_part_is_taken() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
        image,
    ]
    (changed,) = with_hint([{"role": "user", "content": parts}], "+H")
    assert changed["content"] == [parts[0], {**parts[1], "text": "b+H"}, image]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "system", "content": "x"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
    ],
)
def test_no_place(messages: list[dict[str, object]]) -> None:
    with pytest.raises(NoHintPlaceError):
        with_hint(messages, "+H")


TOOLS_SPOKE: list[dict[str, Any]] = [
    {"role": "user", "content": "fix it"},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "tool", "tool_call_id": "c1", "content": "out"},
]


def test_the_other_place_is_the_last_message_whoever_spoke() -> None:
    before = copy.deepcopy(TOOLS_SPOKE)
    changed = with_hint(TOOLS_SPOKE, "+H", "last_message")
    assert changed == [*before[:2], {**before[2], "content": "out+H"}]
    assert before == TOOLS_SPOKE
    (user,) = with_hint([{"role": "user", "content": "a"}], "+H", "last_message")
    assert user["content"] == "a+H"


@pytest.mark.parametrize("role", ["assistant", "system"])
def test_no_hint_goes_behind_what_the_model_does_not_answer(role: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": role, "content": "b"}]
    with pytest.raises(NoHintPlaceError, match=f"last message is {role}"):
        with_hint(messages, "+H", "last_message")
    assert with_hint(messages, "+H")[0]["content"] == "a+H"
