"""Files of recorded turns, read line by line: nothing here holds more than one line and the ids."""

from __future__ import annotations

import codecs
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hintloop_contract.recorded import MAX_LINE_BYTES, RecordedTurn, RecordedTurnError, decode_line, lack

from hintloop.errors import CommandError

#: Most problems that are kept to be shown; all are counted.
MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a line. ``line`` counts from 1."""

    line: int
    field: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.field or 'the line'}: {self.message}; {self.fix}"


@dataclass(slots=True)
class Checked:
    """What a file holds. ``lacks`` counts turns that cannot be trained, by ``stage:reason``."""

    path: Path
    sha256: str = ""
    turns: int = 0
    sessions: int = 0
    judged: int = 0
    """Turns that carry the judgement they had when they were recorded."""
    lacks: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    num_problems: int = 0

    @property
    def trainable(self) -> int:
        """Turns with all that training needs."""
        return self.turns - self.lacks.total()


def numbered_lines(path: Path, after: int = 0, digest: hashlib._Hash | None = None) -> Iterator[tuple[int, bytes]]:
    """Lines of ``path`` behind the first ``after`` with their numbers; empty ones are passed over.

    ``digest`` is given every byte of the file, those of empty lines too.

    Raises:
        CommandError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if digest is not None:
                    digest.update(line)
                if len(line) > MAX_LINE_BYTES:
                    raise CommandError(f"{path}, line {number}: longer than {MAX_LINE_BYTES} bytes; split the file")
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if number > after and line.strip():
                    yield number, line
    except OSError as error:
        raise CommandError(f"{str(path)!r} cannot be read: {error}; give a file of recorded turns") from error


def recorded_turns(path: Path, after: int = 0) -> Iterator[tuple[int, RecordedTurn]]:
    """Turns of ``path`` with their line numbers.

    Raises:
        CommandError: it cannot be read, or a line is no recorded turn.
    """
    for number, line in numbered_lines(path, after):
        try:
            yield number, decode_line(line)
        except RecordedTurnError as error:
            raise CommandError(f"{path}: {Problem(number, error.field, error.message, error.fix)}") from error


def checked(path: Path) -> Checked:
    """Look at every line of ``path``.

    Raises:
        CommandError: it cannot be read.
    """
    found, digest = Checked(path), hashlib.sha256()
    first_line: dict[str, int] = {}
    sessions: set[str] = set()
    for number, line in numbered_lines(path, digest=digest):
        try:
            turn = decode_line(line)
        except RecordedTurnError as error:
            _note(found, Problem(number, error.field, error.message, error.fix))
            continue
        before = first_line.setdefault(turn.turn_id, number)
        if before != number:
            fix = "remove one of them, or give it another turn_id"
            _note(found, Problem(number, "turn_id", f"{turn.turn_id!r} stands in line {before}, too", fix))
            continue
        sessions.add(turn.session.session_id)
        _count(found, turn)
    found.sha256, found.sessions = digest.hexdigest(), len(sessions)
    return found


def _count(found: Checked, turn: RecordedTurn) -> None:
    found.turns += 1
    found.sources[turn.source] += 1
    found.judged += turn.judgement is not None
    lacking = lack(turn)
    if lacking is not None:
        found.lacks[f"{lacking.stage}:{lacking.reason}"] += 1


def _note(found: Checked, problem: Problem) -> None:
    found.num_problems += 1
    if len(found.problems) < MAX_PROBLEMS:
        found.problems.append(problem)
