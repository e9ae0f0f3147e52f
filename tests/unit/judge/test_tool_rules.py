"""Tools by name: ignored, given one verdict, read by their own codes and patterns."""

from typing import Any

import pytest
from hintloop_contract.config.judging import RulesSection
from hintloop_contract.config.schema import OpdSection
from hintloop_judge.conversation import Exchange, ToolResult, call_names
from hintloop_judge.rules import RulesBackend
from hintloop_judge.tool_rules import rules_of, tool_score
from pydantic import ValidationError


def section(**tools: dict[str, Any]) -> RulesSection:
    return RulesSection.model_validate({"tools": tools})


def score(text: str, rules: dict[str, Any], *, is_error: bool | None = None) -> int | None:
    return tool_score([ToolResult(text, is_error, "grep")], section(grep=rules))


@pytest.mark.parametrize(
    ("text", "rules", "expected"),
    [
        ("exit code 1", {}, -1),
        ("exit code 1", {"neutral_exit_codes": [1]}, 0),
        ("exit code 2", {"neutral_exit_codes": [1]}, -1),
        ("exit code 0", {"neutral_exit_codes": [1]}, 1),
        ("Process exited with code 1", {"neutral_exit_codes": [1]}, 0),
        ('{"exit_code": 1, "stdout": ""}', {"neutral_exit_codes": [1]}, 0),
        ('{"metadata": {"exitCode": 1}}', {"neutral_exit_codes": [1]}, 0),
        ("exit code 3", {"success_exit_codes": [0, 3]}, 1),
        ("a\nb\nfinished: 7", {"exit_code_pattern": r"^finished: (\d+)$"}, -1),
        ("finished: 1\nfinished: 0", {"exit_code_pattern": r"^finished: (\d+)$"}, 1),
        ("finished: oh", {"exit_code_pattern": r"^finished: (\w+)$"}, 0),
        ("some listing", {"exit_code_pattern": r"^finished: (\d+)$"}, 0),
        ("Error: no", {"ignore": True}, None),
        ("Error: no", {"treat_as": "neutral"}, 0),
        ("Error: no", {"treat_as": "success"}, 1),
        ("all good", {"treat_as": "failure"}, -1),
        ("0 rows", {"failure_patterns": [r"^0 rows$"]}, -1),
        ("saved\n0 rows", {"failure_patterns": [r"^0 rows$"], "success_patterns": ["saved"]}, -1),
        ("saved", {"success_patterns": ["^saved$"]}, 1),
        ("saved it", {"success_patterns": ["^saved$"]}, 0),
        ("Error: no", {"success_patterns": ["^saved$"]}, -1),
    ],
)
def test_rules_of_a_tool(text: str, rules: dict[str, Any], expected: int | None) -> None:
    assert score(text, rules) == expected


def test_a_configured_code_outweighs_the_agents_flag() -> None:
    assert score("exit code 1", {"neutral_exit_codes": [1]}, is_error=True) == 0
    assert score("no code here", {"neutral_exit_codes": [1]}, is_error=True) == -1


def test_names_and_patterns() -> None:
    rules = RulesSection.model_validate({"tools": {"mcp__*": {"ignore": True}, "mcp__files": {"treat_as": "success"}}})
    assert rules_of("mcp__web", rules).ignore  # type: ignore[union-attr]
    assert rules_of("mcp__files", rules).treat_as == "success"  # type: ignore[union-attr]
    assert rules_of("bash", rules) is None
    assert rules_of(None, rules) is None


def test_other_tools_are_read_as_ever() -> None:
    rules = section(grep={"ignore": True})
    assert tool_score([ToolResult("exit code 1", name="bash")], rules) == -1
    assert tool_score([ToolResult("exit code 1")], rules) == -1


@pytest.mark.parametrize(
    "answer",
    [
        {"tool_calls": [{"id": "a", "type": "function", "function": {"name": "grep", "arguments": "{}"}}]},
        {"content": [{"type": "tool_use", "id": "a", "name": "grep", "input": {}}]},
    ],
)
async def test_a_result_is_named_by_the_call_it_answers(answer: dict[str, Any]) -> None:
    assert call_names(answer) == {"a": "grep"}
    backend = RulesBackend(OpdSection(), section(grep={"neutral_exit_codes": [1]}))
    for result in (
        {"role": "tool", "tool_call_id": "a", "content": "exit code 1"},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "exit code 1"}]},
        {"role": "tool", "name": "grep", "content": "exit code 1"},
    ):
        exchange = Exchange(({"role": "user", "content": "go"},), {"role": "assistant", **answer}, (result,))
        assert (await backend.judge(exchange, score=True, hint=True)).judgement.score == 0


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"failure_patterns": ["("]}, "failure_patterns '('"),
        ({"exit_code_pattern": r"\d+"}, "exactly one group"),
        ({"ignore": True, "treat_as": "success"}, "keep one"),
        ({"neutral_exit_codes": [0]}, "exit code 0 is both"),
        ({"treat_as": "bad"}, "treat_as"),
        ({"ignored": True}, "ignored"),
    ],
)
def test_rules_that_cannot_hold_are_refused(rules: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        section(grep=rules)
    assert words in str(refused.value)
