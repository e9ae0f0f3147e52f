"""Sections of the judge's rules: what a tool's output says of its run, tool by tool."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from hintloop_contract.config.section import Section


class ToolRules(Section):
    """How the output of one tool is read. What is not set here is read as any tool's output is."""

    ignore: bool = False
    """Leave the tool's output out of the judgement altogether."""
    treat_as: Literal["success", "failure", "neutral"] | None = None
    """One verdict for whatever the tool gives back, such as `neutral` for a search that often finds nothing."""
    exit_code_pattern: str | None = None
    """Regular expression whose one group is the exit code; searched line by line, the last match counts."""
    success_exit_codes: list[int] = Field(default_factory=lambda: [0])
    """Exit codes that say that the run succeeded."""
    neutral_exit_codes: list[int] = Field(default_factory=list)
    """Exit codes that say nothing: `[1]` for grep, which found no line. Every other code is a failure."""
    failure_patterns: list[str] = Field(default_factory=list)
    """Regular expressions searched line by line; one that is found makes the output a failure."""
    success_patterns: list[str] = Field(default_factory=list)
    """The same for a success; failures are looked for first."""

    @model_validator(mode="after")
    def _expressions(self) -> ToolRules:
        for name in ("failure_patterns", "success_patterns"):
            for pattern in getattr(self, name):
                _checked(name, pattern)
        if self.exit_code_pattern is not None and _checked("exit_code_pattern", self.exit_code_pattern).groups != 1:
            raise ValueError(
                f"exit_code_pattern {self.exit_code_pattern!r} must have exactly one group, the code: "
                r"for example 'finished with (\d+)'"
            )
        both = sorted(set(self.success_exit_codes) & set(self.neutral_exit_codes))
        if both:
            raise ValueError(f"exit code {both[0]} is both in success_exit_codes and in neutral_exit_codes; keep one")
        if self.ignore and self.treat_as is not None:
            raise ValueError(f"ignore is true and treat_as is {self.treat_as!r}; keep one of them")
        return self


class RulesSection(Section):
    """The judge's rules."""

    tools: dict[str, ToolRules] = Field(default_factory=dict)
    """By tool name, such as `[prm.rules.tools.bash]`; names may be patterns (`"mcp__*"`), the exact name goes first."""


def _checked(name: str, pattern: str) -> re.Pattern[str]:
    if not pattern:
        raise ValueError(f"{name} holds an empty pattern, which every output has; write one, or remove it")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{name} {pattern!r} is no regular expression: {error}") from error
