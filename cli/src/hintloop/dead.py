"""`hintloop dead`: messages that failed repeatedly. Looking at them, sending them again, forgetting them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from hintloop_contract.errors import MessageError
from hintloop_contract.redis_broker import RedisBroker
from hintloop_contract.redis_dead import DeadEntry

from hintloop.deployment import broker_of
from hintloop.errors import CommandError
from hintloop.terminal import harmless

#: Entries read at a time.
PAGE = 200


def run_dead_list(state_dir: Path, files: Sequence[Path], limit: int, *, as_json: bool) -> None:
    """Print the oldest ``limit`` messages: one line each, or a JSON object each with its traceback."""

    async def work() -> list[DeadEntry]:
        async with broker_of(state_dir, files) as broker:
            return await broker.dead_letters(limit)

    entries = asyncio.run(work())
    if not entries and not as_json:
        typer.echo("no message was set aside")
    for entry in entries:
        typer.echo(harmless(json.dumps(_document(entry), ensure_ascii=False) if as_json else _line(entry)))


def run_dead_requeue(state_dir: Path, files: Sequence[Path], ids: Sequence[str], *, everything: bool) -> None:
    """Send messages again. Those that cannot be are named; the exit code is 1 then.

    Raises:
        CommandError: neither ids nor ``everything`` is given, or both are, or an id is not there.
    """

    async def work() -> list[str]:
        async with broker_of(state_dir, files) as broker:
            problems = []
            entries = await _chosen(broker, ids, everything=everything)
            for entry in entries:
                try:
                    await broker.requeue_dead(entry)
                except MessageError as error:
                    problems.append(str(error))
            typer.echo(f"sent again: {len(entries) - len(problems)}")
            return problems

    problems = asyncio.run(work())
    for problem in problems:
        typer.echo(f"hintloop: {harmless(problem)}", err=True)
    if problems:
        raise typer.Exit(1)


def run_dead_purge(state_dir: Path, files: Sequence[Path], ids: Sequence[str], *, everything: bool) -> None:
    """Forget messages for good.

    Raises:
        CommandError: neither ids nor ``everything`` is given, or both are, or an id is not there.
    """

    async def work() -> int:
        async with broker_of(state_dir, files) as broker:
            entries = await _chosen(broker, ids, everything=everything)
            return await broker.purge_dead([entry.entry_id for entry in entries])

    typer.echo(f"forgotten: {asyncio.run(work())}")


async def _chosen(broker: RedisBroker, ids: Sequence[str], *, everything: bool) -> list[DeadEntry]:
    if bool(ids) == everything:
        raise CommandError("give the ids that `hintloop dead list` shows, or --all (and not both)")
    if everything:
        return await _all(broker)
    found = []
    for entry_id in ids:
        entry = await broker.dead_letter(entry_id) if _is_id(entry_id) else None
        if entry is None:
            raise CommandError(f"there is no dead message {entry_id!r}; `hintloop dead list` shows their ids")
        found.append(entry)
    return found


def _is_id(text: str) -> bool:
    milliseconds, _, number = text.partition("-")
    return milliseconds.isdigit() and number.isdigit()


async def _all(broker: RedisBroker) -> list[DeadEntry]:
    found: list[DeadEntry] = []
    while page := await broker.dead_letters(PAGE, found[-1].entry_id if found else ""):
        found += page
    return found


def _document(entry: DeadEntry) -> dict[str, Any]:
    letter = entry.letter
    return {
        "id": entry.entry_id,
        "time": _time(entry),
        "stream": letter.stream,
        "stage": letter.stage,
        "turn_id": letter.turn_id,
        "tenant": entry.tenant,
        "attempts": letter.attempts,
        "error": letter.error,
        "traceback": letter.traceback,
    }


def _line(entry: DeadEntry) -> str:
    letter = entry.letter
    error = " ".join(letter.error.split())
    return f"{entry.entry_id}  {_time(entry)}  {letter.stream}  turn {letter.turn_id}  {error[:200]}"


def _time(entry: DeadEntry) -> str:
    return datetime.fromtimestamp(entry.died_ms / 1000, UTC).isoformat(timespec="seconds")
