"""The two questions put to a judge model. Owns their files, the fencing of untrusted text, and the reply formats.

Prompt files are templates; a directory with files of the same names replaces the shipped ones. `VARIABLES` says
what stands for what; all but the lengths must be in a file, and no other may be.
"""

from __future__ import annotations

import json
import os
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

#: Variables of a prompt file.
VARIABLES = {
    "nonce": "a code that is new with each request; lines that carry it fence what others wrote",
    "request": "the request's messages with roles and tool calls, and the names of its tools",
    "answer": "the assistant's message that is judged",
    "next_state": "every message after it, with roles",
    "reply_format": "how to reply, so that the vote can be read",
    "min_length": "shortest hint in characters (opd.min_hint_length)",
    "max_length": "longest hint in characters (opd.max_hint_length)",
}
REQUIRED = ("nonce", "request", "answer", "next_state", "reply_format")

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

    def render(
        self, question: Question, exchange: Exchange, section: OpdSection, *, schema: bool, nonce: str | None = None
    ) -> str:
        """The question about one exchange. The nonce is new each time, so no text inside can close its fence.

        A given ``nonce`` is for comparing questions, never for asking them.
        """
        template = self.score if question == "score" else self.hint
        return template.substitute(
            nonce=secrets.token_hex(8) if nonce is None else nonce,
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
    if directory is not None and not any(os.path.lexists(directory / f"{name}.md") for name in QUESTIONS):
        raise PromptError(f"prm.judge_prompt_dir {str(directory)!r} holds neither score.md nor hint.md")
    return Prompts(score=_template("score", directory), hint=_template("hint", directory))


def _template(name: Question, directory: Path | None) -> Template:
    path = None if directory is None else directory / f"{name}.md"
    # Whatever stands at the path is meant: a directory, or a link that leads nowhere, is no reason for the shipped one.
    if path is None or not os.path.lexists(path):
        shipped = files("hintloop_judge").joinpath("prompts", f"{name}.md")
        return _checked(Template(shipped.read_text(encoding="utf-8")), f"{name}.md")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"judge prompt {path} cannot be read: {error}") from error
    return _checked(Template(text), str(path))


def _checked(template: Template, origin: str) -> Template:
    known = ", ".join(f"${name}" for name in VARIABLES)
    if not template.is_valid():
        raise PromptError(f"judge prompt {origin} has a $ that begins no variable; write $$, or one of {known}")
    found = set(template.get_identifiers())
    if unknown := sorted(found - set(VARIABLES)):
        raise PromptError(f"judge prompt {origin} has the unknown variable ${unknown[0]}; there are {known}")
    if missing := [f"${name}" for name in REQUIRED if name not in found]:
        raise PromptError(f"judge prompt {origin} lacks {', '.join(missing)}; without it the judge is not told enough")
    return template


def _request(exchange: Exchange) -> str:
    text = transcript(exchange.messages)
    if not exchange.tools:
        return text
    names = [_tool_named(tool) for tool in exchange.tools]
    return f"{text}\n\n[tools available: {', '.join(names)}]"


def _tool_named(tool: dict[str, Any]) -> str:
    function = tool.get("function")
    return str((function if isinstance(function, dict) else tool).get("name", "?"))


def transcript(messages: tuple[Message, ...]) -> str:
    """Messages as text, each under its role, with the tool calls it makes."""
    return "\n\n".join(_spoken(message) for message in messages) or "[nothing]"


def _spoken(message: Message) -> str:
    role = str(message.get("role", "unknown"))
    name = message.get("name") or message.get("tool_call_id")
    header = f"[{role}{f' {name}' if name else ''}]"
    return "\n".join([header, *([body] if (body := message_body(message)) else [])])


def message_body(message: Message) -> str:
    """What a message says and the tool calls it makes, without its role."""
    lines = [text] if (text := message_text(message)) else []
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
