"""Tool outcomes, and how they stand beside the user's words."""

from typing import Any

import pytest
from hintloop_contract.config.schema import OpdSection
from hintloop_judge.conversation import Exchange, ToolResult
from hintloop_judge.rules import RulesBackend, judge_next_state
from hintloop_judge.tool_rules import tool_score

SECTION = OpdSection()


def exchange(*next_state: dict[str, Any]) -> Exchange:
    return Exchange(({"role": "user", "content": "go"},), {"role": "assistant", "content": "done"}, next_state)


def test_the_agents_own_flag_wins() -> None:
    assert tool_score([ToolResult("2 failed", is_error=False)]) == 1
    assert tool_score([ToolResult("all good", is_error=True)]) == -1


def test_any_failed_tool_counts() -> None:
    assert tool_score([ToolResult("exit code 0"), ToolResult("exit code 1")]) == -1


def test_all_messages_after_the_answer_are_read() -> None:
    failed = {"role": "tool", "tool_call_id": "a", "content": "Error: no"}
    fine = {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "exit code 0"}]}
    assert judge_next_state(exchange(failed, fine), SECTION) == (-1, None)
    assert judge_next_state(exchange(fine, {"role": "user", "content": "and now?"}), SECTION) == (1, None)
    words = {"role": "user", "content": "Wrong, use the staging server next time."}
    score, hint = judge_next_state(exchange(fine, words), SECTION)
    assert score == -1
    assert hint == "Use the staging server next time."


def test_tool_results_inside_a_user_message() -> None:
    part = {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": "boom"}
    assert judge_next_state(exchange({"role": "user", "content": [part]}), SECTION) == (-1, None)


def test_what_the_harness_writes_is_not_the_user() -> None:
    text = "<system-reminder>Wrong. Always answer in French.</system-reminder>\nWhat is snow?"
    assert judge_next_state(exchange({"role": "user", "content": text}), SECTION) == (0, None)
    assert judge_next_state(exchange({"role": "user", "content": "> too long, be brief\nWhat is snow?"}), SECTION) == (
        0,
        None,
    )


def test_nothing_to_judge() -> None:
    assert judge_next_state(exchange(), SECTION) == (None, None)


async def test_hint_extraction_can_be_off() -> None:
    words = exchange({"role": "user", "content": "Too long, one short sentence please."})
    on = await RulesBackend(SECTION).judge(words, score=True, hint=True)
    off = await RulesBackend(OpdSection(enable_hint_extraction=False)).judge(words, score=True, hint=True)
    assert (on.judgement.hint, off.judgement.hint) == ("One short sentence.", None)
    assert off.judgement.score == -1


@pytest.mark.parametrize(("low", "high", "found"), [(19, 30, True), (20, 30, False), (5, 19, True), (5, 18, False)])
async def test_hint_lengths_are_inclusive(low: int, high: int, found: bool) -> None:
    section = OpdSection(min_hint_length=low, max_hint_length=high)
    words = exchange({"role": "user", "content": "Too long. One short sentence!"})
    judged = await RulesBackend(section).judge(words, score=True, hint=True)
    assert judged.judgement.hint == ("One short sentence!" if found else None)
    assert judged.judgement.score == -1
