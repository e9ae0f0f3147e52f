"""`hintloop replay import-openclaw`: OpenClaw-RL's record files as recorded turns.

Its proxy writes a JSON object a turn (``OPENCLAW_RECORD_FILE``) with ``session_id``, ``turn``, ``timestamp``,
``messages``, ``prompt_text``, ``response_text``, ``tool_calls`` and ``next_state``, the *last* message of the session's
next request or null. Judgements stand in a second file (``…_prm.jsonl``), by session and turn. There are no token ids
and no log-probabilities in either: every imported turn can be judged, and none can be trained.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import typer
from hintloop_contract.messages import Judgement, Vote
from hintloop_contract.recorded import RecordedSession, RecordedTurn, encode_line, lack

from hintloop.errors import CommandError
from hintloop.replay.lines import numbered_lines
from hintloop.replay.writing import Written

SOURCE = "openclaw-rl"
#: The same record gets the same id each time it is imported.
_IDS = uuid.UUID("6f0f3a53-6f6e-4b8e-9d62-31f9d6b7c1aa")
#: The end of a turn as templates write it behind an answer's text.
_END_MARK = re.compile(r"(?:<\|[A-Za-z_]+\|>|</s>)\s*$")


class _Record(msgspec.Struct, frozen=True):
    """One line of its record file; what is added to it elsewhere is passed over."""

    session_id: str
    turn: int
    messages: list[dict[str, Any]]
    response_text: str
    prompt_text: str = ""
    tool_calls: list[Any] | None = None
    next_state: dict[str, Any] | None = None
    timestamp: str = ""


@dataclass(frozen=True, slots=True)
class _Place:
    """A record that waits for the session's next one, from which the exact answer and the whole next state come."""

    line: int
    record: _Record


@dataclass(slots=True)
class Imported:
    """What became of the records."""

    turns: int = 0
    restored: int = 0
    """Turns whose answer and whole next state were found in the session's next request."""
    with_judgement: int = 0
    skipped: list[tuple[int, str]] = field(default_factory=list)
    lacks: Counter[str] = field(default_factory=Counter)


def run_import(path: Path, prm: Path | None, out: Path) -> None:
    """Write the turns of ``path`` to ``out``, with the judgements of ``prm``, and tell what can be done with them.

    Raises:
        CommandError: a file cannot be read or written, or is of another form.
    """
    judgements = _judgements(prm) if prm is not None else {}
    found = Imported()
    with Written(out, [path] if prm is None else [path, prm]) as written:
        for turn in _turns(path, judgements, found):
            lacking = lack(turn)
            found.turns += 1
            found.lacks[str(lacking.reason) if lacking else "none"] += 1
            written.write(encode_line(turn))
    typer.echo(f"{out}: {found.turns} turns; {found.restored} with the exact answer and the whole next state, taken")
    typer.echo("  from the session's next request; of the others the next state is its last message")
    if judgements:
        typer.echo(f"  {found.with_judgement} with their recorded judgement")
    judged = found.lacks["ids_missing"]
    typer.echo(f"  {judged} can be judged and not trained: these records hold no token ids and no log-probabilities")
    for reason, number in found.lacks.most_common():
        if reason != "ids_missing":
            typer.echo(f"  {number} cannot be judged: {reason}")
    for line, why in found.skipped:
        typer.echo(f"  line {line} is left out: {why}")


def _turns(path: Path, judgements: dict[tuple[str, int], Judgement], found: Imported) -> Iterator[RecordedTurn]:
    waiting: dict[str, _Place] = {}
    for number, line in numbered_lines(path):
        record = _read(path, number, line)
        before = waiting.pop(record.session_id, None)
        if before is not None:
            yield from _turn(before, record, judgements, found)
        waiting[record.session_id] = _Place(number, record)
    for place in waiting.values():
        yield from _turn(place, None, judgements, found)


def _read(path: Path, number: int, line: bytes) -> _Record:
    try:
        return msgspec.json.decode(line, type=_Record)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CommandError(
            f"{path}, line {number}: {error}; it is no record of OpenClaw-RL (OPENCLAW_RECORD_FILE), which has "
            "session_id, turn, messages, response_text and next_state"
        ) from error


def _turn(
    place: _Place, after: _Record | None, judgements: dict[tuple[str, int], Judgement], found: Imported
) -> Iterator[RecordedTurn]:
    record = place.record
    continued = _continuation(record, after)
    if continued is not None:
        found.restored += 1
        answer, next_state = continued
    else:
        text = _answer_text(record)
        if text is None:
            found.skipped.append(
                (place.line, "response_text holds the whole conversation, and no next request shows it")
            )
            return
        answer = {"role": "assistant", "content": text}
        if record.tool_calls:
            answer["tool_calls"] = record.tool_calls
        next_state = [] if record.next_state is None else [record.next_state]
    judgement = judgements.get((record.session_id, record.turn))
    found.with_judgement += judgement is not None
    yield RecordedTurn(
        turn_id=str(uuid.uuid5(_IDS, f"{record.session_id}/{record.turn}/{place.line}")),
        session=RecordedSession(session_id=record.session_id, turn_index=max(0, record.turn - 1)),
        messages=_raw(record.messages),
        answer=_raw(answer),
        next_state=_raw(next_state),
        captured_ms=_milliseconds(record.timestamp),
        judgement=judgement,
        source=SOURCE,
    )


def _continuation(record: _Record, after: _Record | None) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """The answer and all that followed it, where the next request of the session repeats this one and goes on."""
    if after is None or after.turn != record.turn + 1:
        return None
    length = len(record.messages)
    if after.messages[:length] != record.messages or len(after.messages) < length + 2:
        return None
    answer, *rest = after.messages[length:]
    return (answer, rest) if answer.get("role") == "assistant" else None


def _answer_text(record: _Record) -> str | None:
    """The answer without the template's end mark; ``None`` where the record holds the conversation in its place."""
    text, prompt = record.response_text, record.prompt_text
    # Written so where the template renders the answer otherwise behind it than in front of a next one.
    if prompt and len(text) > len(prompt) // 2 and text[:64] == prompt[:64]:
        return None
    return _END_MARK.sub("", text)


def _judgements(path: Path) -> dict[tuple[str, int], Judgement]:
    found = {}
    for number, line in numbered_lines(path):
        try:
            item = json.loads(line)
            key = (str(item["session_id"]), _turn_number(item["turn"]))
            found[key] = _judgement(item)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise CommandError(
                f"{path}, line {number}: {type(error).__name__}: {error}; it is no judgement of OpenClaw-RL, which "
                "has session_id, turn and votes"
            ) from error
    return found


def _turn_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"turn is {value!r}, not a whole number")
    return int(value)


def _judgement(item: dict[str, Any]) -> Judgement:
    votes = item.get("votes") if isinstance(item.get("votes"), list) else []
    hint = item.get("hint")
    return Judgement(
        score=_score(item.get("score")),
        hint=hint if isinstance(hint, str) and hint else None,
        votes=tuple(_vote(vote) for vote in votes or []),
        backend=SOURCE,
    )


def _vote(vote: Any) -> Vote:
    given = vote if isinstance(vote, dict) else {"score": vote}
    score, hint = _score(given.get("score")), given.get("hint")
    hint = hint if isinstance(hint, str) and hint else None
    return Vote(
        score=score, hint=hint, failed="failed when it was recorded" if score is None and hint is None else None
    )


def _score(value: Any) -> int | None:
    """-1, 0 or 1; ``None`` where none was recorded or what stands there is no number.

    Raises:
        ValueError: it is another number.
    """
    number: float | None = None
    with suppress(TypeError, ValueError):
        number = None if isinstance(value, bool) else float(value)
    if number is not None and number not in (-1, 0, 1):
        raise ValueError(f"score is {value!r}, not -1, 0 or 1")
    return None if number is None else int(number)


def _milliseconds(timestamp: str) -> int:
    """Their clock has no zone; this machine's is taken. 0 where it cannot be read."""
    with suppress(ValueError, OverflowError):
        return int(time.mktime(time.strptime(timestamp, "%Y-%m-%d %H:%M:%S")) * 1000)
    return 0


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
