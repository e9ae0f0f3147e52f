"""The probe prompts: JSON lines of ``{"messages": [...], "expect": ...}``, checked as they are read. Pure.

``messages`` are those of a chat, ending with a user's; instead of them ``prompt_ids`` may give the token ids of a
prompt. ``expect`` is optional: a regular expression that is searched in the answer, or a list of words that all have to
occur in it; case does not matter.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from hintloop_contract.errors import ConfigError

#: Fewer prompts than this tell nothing apart.
LEAST_PROBES = 4
_KEYS = {"messages", "prompt_ids", "expect"}


@dataclass(frozen=True, slots=True)
class Probe:
    """One prompt, as messages or as token ids, and what its answer has to hold, if anything."""

    messages: tuple[dict[str, str], ...]
    prompt_ids: tuple[int, ...]
    expect: tuple[re.Pattern[str], ...] = ()
    """Every one of them must be found in the answer."""

    def is_met(self, text: str) -> bool | None:
        """Whether ``text`` holds what is expected; ``None`` when nothing is."""
        if not self.expect:
            return None
        return all(pattern.search(text) for pattern in self.expect)


def read_probes(file: Path | None) -> list[Probe]:
    """The probes of ``file``, or the built-in ones.

    Raises:
        ConfigError: the file cannot be read, or a line is wrong; the message names the line, the field and the fix.
    """
    if file is None:
        text, name = (resources.files(__package__) / "probes.jsonl").read_text("utf-8"), "built-in probes"
    else:
        name = f"gate.probe_file {str(file)!r}"
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name} cannot be read: {error}") from error
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    probes = [_probe(f"{name}, line {number}", line) for number, line in lines]
    if len(probes) < LEAST_PROBES:
        raise ConfigError(f"{name} holds {len(probes)} prompts; give at least {LEAST_PROBES}, better 20 or more")
    return probes


def _probe(where: str, line: str) -> Probe:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f'{where} is no object; write {{"messages": [...], "expect": "..."}}')
    unknown = sorted(found.keys() - _KEYS)
    if unknown:
        raise ConfigError(f"{where}: {unknown[0]!r} is none of {', '.join(sorted(_KEYS))}")
    if ("messages" in found) == ("prompt_ids" in found):
        raise ConfigError(f"{where}: give messages, or prompt_ids in their place")
    ids = found.get("prompt_ids", [])
    if "prompt_ids" in found and not _are_ids(ids):
        raise ConfigError(f"{where}: prompt_ids must be a list of token ids, one at least")
    messages = _messages(where, found["messages"]) if "messages" in found else ()
    return Probe(messages, tuple(ids), _patterns(where, found.get("expect")))


def _are_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value)
    )


def _messages(where: str, value: Any) -> tuple[dict[str, str], ...]:
    form = '{"role": "user", "content": "..."}'
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: messages must be a list of {form}")
    for message in value:
        texts = isinstance(message, dict) and message.keys() == {"role", "content"}
        if not texts or not all(isinstance(part, str) for part in message.values()):
            raise ConfigError(f"{where}: {message!r} is no message; write {form}")
    if value[-1]["role"] != "user":
        raise ConfigError(f"{where}: the last message is of the role {value[-1]['role']!r}; it must be the user's")
    return tuple(value)


def _patterns(where: str, value: Any) -> tuple[re.Pattern[str], ...]:
    if value is None:
        return ()
    if isinstance(value, str) and value:
        try:
            return (re.compile(value, re.IGNORECASE),)
        except re.error as error:
            raise ConfigError(f"{where}: expect {value!r} is no regular expression: {error}") from error
    if isinstance(value, list) and value and all(isinstance(word, str) and word for word in value):
        return tuple(re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE) for word in value)
    raise ConfigError(f"{where}: expect {value!r} must be a regular expression, or a list of words")
