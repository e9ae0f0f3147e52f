"""The questions: the shipped ones, and held-out ones from a file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import cycle, islice
from pathlib import Path

from hintloop.demo.preference import words
from hintloop.errors import PromptFileError

#: Fewest answers that a rate is reported on, unless fewer are asked for.
MIN_EVAL_ANSWERS = 64
FIELDS = ("prompt", "topic")
EXAMPLE = '{"prompt": "What is rain?", "topic": "rain"}'


@dataclass(frozen=True, slots=True)
class Question:
    """A question and what an answer must be about."""

    prompt: str
    topic: str


@dataclass(frozen=True, slots=True)
class Wordings:
    """What the scripted user says about an answer."""

    complaints: tuple[str, ...]
    confirmations: tuple[str, ...]


def shipped(part: str) -> list[Question]:
    """The shipped questions, ``train`` or ``eval``; their topics are disjoint."""
    data = json.loads(_data("short-questions.json"))
    return [Question(item["prompt"], item["topic"]) for item in data[part]]


def wordings() -> Wordings:
    """The scripted user's sentences."""
    data = json.loads(_data("wordings.json"))
    return Wordings(tuple(data["complaints"]), tuple(data["confirmations"]))


def _data(name: str) -> str:
    return (resources.files("hintloop.demo") / "data" / name).read_text(encoding="utf-8")


def read_file(path: Path) -> list[Question]:
    """Read JSON lines with ``prompt`` and ``topic``; blank lines are skipped.

    Raises:
        PromptFileError: names the line, the field and the fix.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise PromptFileError(
            f"--eval-prompts {path}: there is no such file; give the path of one with JSON lines like {EXAMPLE}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise PromptFileError(f"--eval-prompts {path}: cannot be read ({error}); give a UTF-8 file") from error
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    questions = [_question(f"--eval-prompts {path}:{number} (line {number})", line) for number, line in numbered]
    if not questions:
        raise PromptFileError(
            f"--eval-prompts {path}: the file holds no prompt; write at least one line like {EXAMPLE}"
        )
    return questions


def _question(place: str, line: str) -> Question:
    try:
        item = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptFileError(f"{place}: {line[:80]!r} is not JSON ({error.msg}); write {EXAMPLE}") from error
    if not isinstance(item, dict):
        raise PromptFileError(f"{place}: {line[:80]!r} is not an object; write an object with prompt and topic")
    for field in FIELDS:
        value = item.get(field)
        if field not in item:
            raise PromptFileError(f"{place}: field {field!r} is missing; add it as a string")
        if not isinstance(value, str) or not value.strip():
            raise PromptFileError(f"{place}: field {field!r} is {value!r}; give a string that is not empty")
    if not words(item["topic"]):
        raise PromptFileError(f"{place}: field 'topic' is {item['topic']!r}; give at least one word")
    return Question(item["prompt"].strip(), item["topic"].strip())


def repeated(questions: Sequence[Question], minimum: int = MIN_EVAL_ANSWERS) -> list[Question]:
    """Every question, and again from the first one until there are ``minimum``."""
    return list(islice(cycle(questions), max(minimum, len(questions))))
