"""Tool outcomes, and how they stand beside the user's words."""

from typing import Any

import pytest
from hintloop_contract.config.schema import OpdSection
from hintloop_judge.conversation import Exchange, ToolResult
from hintloop_judge.rules import RulesBackend, judge_next_state, tool_score

SECTION = OpdSection()


def exchange(*next_state: dict[str, Any]) -> Exchange:
    return Exchange(({"role": "user", "content": "go"},), {"role": "assistant", "content": "done"}, next_state)


@pytest.mark.parametrize(
    "text",
    [
        'Traceback (most recent call last):\n  File "a.py", line 1\nNameError: x',
        "ValueError: invalid literal for int()",
        "Error: file not found",
        "error[E0382]: borrow of moved value",
        "Process exited with code 127",
        "exit code: 1",
        "exit status 2",
        '{"exit_code": 3, "stdout": ""}',
        '{"success": false}',
        '{"error": "no such user"}',
        "HTTP/1.1 404 Not Found",
        "status code 500",
        '{"status": 422}',
        "===== 2 failed, 8 passed in 0.31s =====",
        "FAILED (failures=1)",
        "bash: foo: command not found",
        "cat: a.txt: No such file or directory",
        "fatal: not a git repository",
    ],
)
def test_failures(text: str) -> None:
    assert tool_score([ToolResult(text)]) == -1


@pytest.mark.parametrize(
    "text",
    [
        "exit code 0",
        "10 passed in 0.2s",
        '{"success": true}',
        "HTTP 200",
        "Successfully installed x",
        "0 failed, 3 passed",
    ],
)
def test_successes(text: str) -> None:
    assert tool_score([ToolResult(text)]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "total 4\n-rw-r--r-- 1 a a 5 notes.md",
        "0 errors",
        "no errors found",
        "class ParseError(Exception): pass",
        '{"error": null}',
    ],
)
def test_output_that_does_not_tell(text: str) -> None:
    assert tool_score([ToolResult(text)]) == 0


@pytest.mark.parametrize("text", ["Command timed out after 60 s", "Request interrupted by user", ""])
def test_what_is_never_judged(text: str) -> None:
    assert tool_score([ToolResult(text)]) is None


def test_the_agents_own_flag_wins() -> None:
    assert tool_score([ToolResult("2 failed", is_error=False)]) == 1
    assert tool_score([ToolResult("all good", is_error=True)]) == -1


def test_any_failed_tool_counts() -> None:
    assert tool_score([ToolResult("exit code 0"), ToolResult("exit code 1"), ToolResult("timed out")]) == -1


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
