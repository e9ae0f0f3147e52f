"""`hintloop replay export`: a deployment's turns as recorded turns.

From the console, which keeps the most; or from Redis: what its history still holds, or what was set aside as `dead`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import typer
from hintloop_contract.codec import decode_payload
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import MessageError
from hintloop_contract.messages import DeadLetter, JudgedTurn, Judgement, LinkedTurn, Sample, TurnRecord
from hintloop_contract.recorded import encode_line, recorded
from hintloop_contract.redis_broker import RedisBroker
from hintloop_contract.streams import JUDGED, TURNS

from hintloop.deployment import broker_of, config_of
from hintloop.errors import CommandError
from hintloop.replay.until import Source
from hintloop.replay.writing import Written

PAGE = 200
CONSOLE_TIMEOUT_S = 600.0


@dataclass(slots=True)
class _Gathered:
    """What the history says of one turn so far."""

    turn: LinkedTurn
    record: TurnRecord
    judgement: Judgement | None = None
    sample: Sample | None = None


def run_export(state_dir: Path, files: Sequence[Path], source: Source, out: Path) -> None:
    """Write the turns to ``out``, and say how many there are.

    Raises:
        CommandError: there is no deployment, the source does not answer, or the file cannot be written.
    """

    async def work() -> int:
        number = 0
        with Written(out, files) as written:
            async for line in _lines(state_dir, files, source):
                written.write(line)
                number += 1
        return number

    number = asyncio.run(work())
    typer.echo(f"{out}: {number} turn(s)")
    if not number:
        typer.echo("none were found: is [console] history off, or has nothing been linked yet?", err=True)


async def _lines(state_dir: Path, files: Sequence[Path], source: Source) -> AsyncIterator[bytes]:
    if source in (Source.AUTO, Source.CONSOLE):
        config = config_of(state_dir, files)
        if source is Source.CONSOLE or await _console_answers(config):
            async for line in _from_console(config):
                yield line
            return
        typer.echo("no console answers: taken from Redis, which holds the newest turns alone", err=True)
    async with broker_of(state_dir, files) as broker:
        taken = _from_dead(broker) if source is Source.DEAD else _from_history(broker)
        async for line in taken:
            yield line


def _address(config: Config) -> str:
    host = config.console.host
    host = "127.0.0.1" if host in ("", "0.0.0.0") else "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    return f"http://{host}:{config.console.port}"


async def _console_answers(config: Config) -> bool:
    try:
        timeout = aiohttp.ClientTimeout(total=5.0)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{_address(config)}/health") as reply,
        ):
            return reply.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _from_console(config: Config) -> AsyncIterator[bytes]:
    address, password = _address(config), config.console.password.get_secret_value()
    timeout = aiohttp.ClientTimeout(total=None, sock_read=CONSOLE_TIMEOUT_S, sock_connect=10.0)
    # Cookies of a bare address are kept only when asked to.
    jar = aiohttp.CookieJar(unsafe=True)
    try:
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=jar) as session:
            if password:
                headers = {"X-Hintloop-Console": "1"}
                body = {"password": password}
                async with session.post(f"{address}/api/v1/session", json=body, headers=headers) as reply:
                    await _require_ok(reply)
            async with session.get(f"{address}/api/v1/export") as reply:
                await _require_ok(reply)
                rest = b""
                async for chunk in reply.content.iter_chunked(1 << 20):
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        if line.strip():
                            yield line + b"\n"
                if rest.strip():
                    raise CommandError(f"{address} ended in the middle of a turn; ask again")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise CommandError(
            f"the console at {address} does not answer: {error}; start it, or give --from redis"
        ) from error


async def _require_ok(reply: aiohttp.ClientResponse) -> None:
    if reply.status >= 400:
        said = (await reply.text())[:300]
        raise CommandError(f"{reply.url} answers {reply.status}: {said}; give --from redis, or console.password")


async def _from_history(broker: RedisBroker) -> AsyncIterator[bytes]:
    """The turns that the history still holds, in order, with what was said of them by now.

    What it holds is bounded by ``console.history_max_mb``, and so is what is gathered here.
    """
    gathered: dict[str, _Gathered] = {}
    after = "0-0"
    while entries := await broker.history(after, PAGE):
        after = entries[-1].entry_id
        for entry in entries:
            message = entry.message
            if isinstance(message, LinkedTurn) and entry.record is not None:
                gathered[message.turn_id] = _Gathered(message, entry.record)
            known = gathered.get(entry.turn_id)
            if known is not None and isinstance(message, JudgedTurn):
                known.judgement = message.judgement
            elif known is not None and isinstance(message, Sample):
                known.sample = message
    for found in gathered.values():
        line = _line(found)
        if line is not None:
            yield line


def _line(found: _Gathered) -> bytes | None:
    """The turn as it is written; ``None`` for a damaged one, which is told and takes no other with it."""
    try:
        return encode_line(recorded(found.turn, found.record, found.judgement, found.sample))
    except MessageError as error:
        typer.echo(f"turn {found.turn.turn_id} is left out: {error}", err=True)
        return None


async def _from_dead(broker: RedisBroker) -> AsyncIterator[bytes]:
    """Turns that failed at judge or teacher and were set aside, as long as their records are kept."""
    after = ""
    while entries := await broker.dead_letters(PAGE, after):
        after = entries[-1].entry_id
        for entry in entries:
            if entry.letter.stream not in (TURNS.name, JUDGED.name):
                continue
            try:
                turn, judgement = _dead_turn(entry.letter)
            except MessageError as error:
                typer.echo(f"{entry.entry_id} is left out: {error}", err=True)
                continue
            record = await broker.get_turn(entry.letter.turn_id)
            if record is None:
                typer.echo(f"turn {entry.letter.turn_id} is left out: its record is gone", err=True)
                continue
            line = _line(_Gathered(turn, record, judgement))
            if line is not None:
                yield line


def _dead_turn(letter: DeadLetter) -> tuple[LinkedTurn, Judgement | None]:
    if letter.stream == TURNS.name:
        return decode_payload(letter.message, LinkedTurn), None
    judged = decode_payload(letter.message, JudgedTurn)
    return judged.turn, judged.judgement
