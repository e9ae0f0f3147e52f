"""The two questions put to a judge model. Owns their files, the fencing of untrusted text, and the reply formats.

Prompt files are templates with ``$nonce $request $answer $next_state $reply_format`` (and ``$min_length
$max_length`` in the hint's); a directory with files of the same names replaces the shipped ones.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Literal

from hintloop_contract.config.schema import OpdSection

from hintloop_judge.conversation import Exchange, Message, message_text
from hintloop_judge.errors import PromptError

Question = Literal["score", "hint"]
QUESTIONS: tuple[Question, Question] = ("score", "hint")

PLACEHOLDERS = ("nonce", "request", "answer", "next_state", "reply_format")

#: How a reply is written without structured output. The hint's marker for "none" is empty brackets between them.
MARKER_FORMATS: dict[Question, str] = {
    "score": "Think briefly if you must, then end your reply with exactly one of \\boxed{+1}, \\boxed{0}, \\boxed{-1}.",
    "hint": "Reply with [HINT_START]the hint[HINT_END], or with [NO_HINT] and nothing else when there is no hint.",
}
SCHEMA_FORMATS: dict[Question, str] = {
    "score": 'Reply with JSON: {"score": 1}, {"score": 0} or {"score": -1}.',
    "hint": 'Reply with JSON: {"hint": "the hint"}, or {"hint": null} when there is no hint.',
}
SCHEMAS: dict[Question, dict[str, Any]] = {
    "score": {
        "type": "object",
        "properties": {"score": {"type": "integer", "enum": [-1, 0, 1]}},
        "required": ["score"],
        "additionalProperties": False,
    },
    "hint": {
        "type": "object",
        "properties": {"hint": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        "required": ["hint"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True, slots=True)
class Prompts:
    """The two templates."""

    score: Template
    hint: Template

    def render(self, question: Question, exchange: Exchange, section: OpdSection, *, schema: bool) -> str:
        """The question about one exchange. The nonce is new each time, so no text inside can close its fence."""
        template = self.score if question == "score" else self.hint
        return template.substitute(
            nonce=secrets.token_hex(8),
            request=_request(exchange),
            answer=transcript((exchange.answer,)),
            next_state=transcript(exchange.next_state),
            reply_format=(SCHEMA_FORMATS if schema else MARKER_FORMATS)[question],
            min_length=section.min_hint_length,
            max_length=section.max_hint_length,
        )


def load_prompts(directory: Path | None = None) -> Prompts:
    """The shipped prompts, or those in ``directory`` (``score.md``, ``hint.md``; a missing one is the shipped one).

    Raises:
        PromptError: the directory holds neither, or a file lacks a placeholder or holds an unknown one.
    """
    if directory is not None and not any((directory / f"{name}.md").is_file() for name in QUESTIONS):
        raise PromptError(f"prm.judge_prompt_dir {str(directory)!r} holds neither score.md nor hint.md")
    return Prompts(score=_template("score", directory), hint=_template("hint", directory))


def _template(name: Question, directory: Path | None) -> Template:
    path = None if directory is None else directory / f"{name}.md"
    if path is not None and path.is_file():
        text, origin = path.read_text(encoding="utf-8"), str(path)
    else:
        text = files("hintloop_judge").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8")
        origin = f"{name}.md"
    template = Template(text)
    found = set(template.get_identifiers()) if template.is_valid() else set()
    missing = [f"${item}" for item in PLACEHOLDERS if item not in found]
    unknown = sorted(found - {*PLACEHOLDERS, "min_length", "max_length"})
    if missing or unknown:
        raise PromptError(
            f"judge prompt {origin} lacks {', '.join(missing) or 'nothing'} and has unknown "
            f"{', '.join(unknown) or 'nothing'}; write a dollar sign as $$"
        )
    return template


def _request(exchange: Exchange) -> str:
    text = transcript(exchange.messages)
    if not exchange.tools:
        return text
    names = [str((tool.get("function") or tool).get("name", "?")) for tool in exchange.tools]
    return f"{text}\n\n[tools available: {', '.join(names)}]"


def transcript(messages: tuple[Message, ...]) -> str:
    """Messages as text, each under its role, with the tool calls it makes."""
    return "\n\n".join(_spoken(message) for message in messages) or "[nothing]"


def _spoken(message: Message) -> str:
    role = str(message.get("role", "unknown"))
    name = message.get("name") or message.get("tool_call_id")
    lines = [f"[{role}{f' {name}' if name else ''}]"]
    if text := message_text(message):
        lines.append(text)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = function.get("arguments", "")
            shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            lines.append(f"[calls {function.get('name', '?')} with {shown}]")
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "tool_result":
            lines.append(f"[tool result] {message_text(part)}")
    return "\n".join(lines)
