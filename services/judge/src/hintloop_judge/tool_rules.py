"""What the configuration says of single tools, laid over the common reading of their output."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from hintloop_contract.config.judging import RulesSection, ToolRules

from hintloop_judge.conversation import ToolResult
from hintloop_judge.tool_outcomes import exit_code, one_tool, strongest

_VERDICTS = {"success": 1, "failure": -1, "neutral": 0}
_CODE_KEYS = {"exit_code_pattern", "success_exit_codes", "neutral_exit_codes"}


def tool_score(results: Sequence[ToolResult], section: RulesSection | None = None) -> int | None:
    """-1 when any tool failed, +1 when one says it succeeded, 0 for other output, ``None`` when none said anything."""
    return strongest([_score(result, rules_of(result.name, section)) for result in results])


def rules_of(name: str | None, section: RulesSection | None) -> ToolRules | None:
    """The rules of a tool: those of its exact name, else of the first pattern that fits it."""
    if name is None or section is None:
        return None
    if name in section.tools:
        return section.tools[name]
    return next((rules for pattern, rules in section.tools.items() if fnmatchcase(name, pattern)), None)


def _score(result: ToolResult, rules: ToolRules | None) -> int | None:
    if rules is None:
        return one_tool(result)
    if rules.ignore:
        return None
    if rules.treat_as is not None:
        return _VERDICTS[rules.treat_as]
    lines = [line.rstrip() for line in result.text.splitlines() if line.strip()]
    for verdict, patterns in ((-1, rules.failure_patterns), (1, rules.success_patterns)):
        if any(re.search(pattern, line) for pattern in patterns for line in lines):
            return verdict
    code = _code(result.text, lines, rules) if rules.model_fields_set & _CODE_KEYS else None
    if code is None:
        return one_tool(result)
    if code in rules.success_exit_codes:
        return 1
    return 0 if code in rules.neutral_exit_codes else -1


def _code(text: str, lines: Sequence[str], rules: ToolRules) -> int | None:
    """The exit code that the output states, by the tool's own pattern or the common forms."""
    if rules.exit_code_pattern is None:
        return exit_code(lines, _object(text))
    found = [match[1] for line in lines if (match := re.search(rules.exit_code_pattern, line))]
    if not found or found[-1] is None:
        return None
    try:
        return int(found[-1])
    except ValueError:
        return None


def _object(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
