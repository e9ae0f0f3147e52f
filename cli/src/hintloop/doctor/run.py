"""`hintloop doctor`. Owns where the configuration is found, the masking of secrets, and the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
import typer
from hintloop_contract.config import LoadedConfig, load_config
from hintloop_contract.config.arguments import flags_of
from hintloop_contract.errors import ConfigError
from hintloop_contract.logs import MASK
from pydantic import BaseModel, SecretStr
from rich.console import Console

from hintloop.deployment import decided_file
from hintloop.doctor import show, stations
from hintloop.doctor.checks import loss
from hintloop.doctor.checks.refused import cause_of
from hintloop.doctor.finding import Outcome, fail
from hintloop.doctor.look import looking
from hintloop.doctor.stations import Visit
from hintloop.errors import CommandError

#: Stations beside `loss` that make it worth importing early.
ENOUGH_TO_WARM = 6
#: Exit codes: nothing wrong, something wrong, something that will disappoint.
CODES = {Outcome.OK: 0, Outcome.FAIL: 1, Outcome.WARN: 3}


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the walk is asked for. ``only``: stations, all for none; ``keys``: ``section.key=value``, above all files;
    ``alone``: contact nothing; ``active``: publish and go back at the end; ``plain``: one text to paste, whatever the
    terminal."""

    only: Sequence[str] = ()
    keys: Sequence[str] = ()
    as_json: bool = False
    alone: bool = False
    active: bool = False
    plain: bool = False

    @property
    def chosen(self) -> list[stations.Station]:
        """The stations to visit."""
        return [*stations.chosen(self.only), *([stations.ACTIVE] if self.active else [])]


def run_doctor(state_dir: Path, files: Sequence[Path], settings: Sequence[Path], wanted: Wanted) -> None:
    """Walk the chain and report. Exits 0 when all is well, 3 with warnings alone, 1 with a failure.

    Raises:
        CommandError: ``wanted`` names no station, or wants what does not go together.
    """
    for name in wanted.only:
        if name not in stations.NAMES:
            near = difflib.get_close_matches(name, stations.NAMES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise CommandError(f"--only {name!r} is no station{hint}; there are {', '.join(stations.NAMES)}")
    if wanted.alone and wanted.active:
        raise CommandError("--config-only contacts nothing, and --active publishes; give one of them")
    with _quiet():
        visits = _report(state_dir, files, settings, wanted)
    raise typer.Exit(CODES[stations.worst(visits)])


def _report(state_dir: Path, files: Sequence[Path], settings: Sequence[Path], wanted: Wanted) -> list[Visit]:
    """Find the configuration and walk; one that does not load is all there is to tell."""
    decided = decided_file(state_dir)
    try:
        loaded = load_config([*files, *([decided] if decided else [])], settings=settings, flags=flags_of(wanted.keys))
    except ConfigError as error:
        visits = [Visit("configuration", [fail("configuration", str(error), cause_of(str(error)))], 0.0)]
        _print(visits, wanted)
        return visits
    return asyncio.run(_walk(loaded, wanted))


async def _walk(loaded: LoadedConfig, wanted: Wanted) -> list[Visit]:
    hidden = secrets(loaded.config)
    console = Console()
    at_once = not (wanted.as_json or wanted.plain)

    def tell(visit: Visit) -> None:
        if at_once:
            show.tell(console, masked(visit, hidden))

    async with looking(loaded, alone=wanted.alone) as look:
        chosen = wanted.chosen
        if wanted.active and "redis" not in [station.name for station in chosen]:
            chosen = [*stations.chosen(["publishing"]), *chosen]
        if not wanted.alone:
            _warm(chosen)
        visits = await stations.visit(look, chosen, tell)
    if at_once:
        show.conclude(console, visits)
    else:
        _print([masked(visit, hidden) for visit in visits], wanted, show.header(loaded.config))
    return visits


def _warm(chosen: Sequence[stations.Station]) -> None:
    """Import torch and megatron beside the stations before `loss`, which wait for engines most of their time."""
    names = [station.name for station in chosen]
    if "loss" not in names or len(names) < ENOUGH_TO_WARM:
        return
    # What those stations import themselves comes first: two threads should not import the same.
    import hintloop_teacher.wiring  # noqa: F401

    threading.Thread(target=loss.warm, name="warming", daemon=True).start()


def masked(visit: Visit, hidden: Sequence[str]) -> Visit:
    """What a station had to say without any secret; before it is drawn, for a line's end may divide one."""

    def shown(value: Any) -> Any:
        return mask(value, hidden) if isinstance(value, str) else value

    findings = [
        replace(
            finding,
            seen=mask(finding.seen, hidden),
            rows=[{name: shown(value) for name, value in row.items()} for row in finding.rows],
        )
        for finding in visit.findings
    ]
    return replace(visit, findings=findings)


def _print(visits: Sequence[Visit], wanted: Wanted, header: Sequence[str] = ()) -> None:
    if wanted.as_json:
        typer.echo(show.as_json(visits))
    elif wanted.plain:
        typer.echo(show.plain(visits, header))
    else:
        console = Console()
        for visit in visits:
            show.tell(console, visit)
        show.conclude(console, visits)


def secrets(section: BaseModel) -> list[str]:
    """Every secret of a configuration, longest first; a password inside an address on its own, too."""
    found: set[str] = set()
    for name in type(section).model_fields:
        values = getattr(section, name)
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, BaseModel):
                found.update(secrets(value))
            elif isinstance(value, SecretStr):
                text = value.get_secret_value()
                found.add(_password(text) if "://" in text and "@" in text else text)
    return sorted((text for text in found if text and "://" not in text), key=len, reverse=True)


def _password(address: str) -> str:
    """Of ``scheme://user:password@host``; the last @ ends it, for a password may hold others."""
    return address.partition("://")[2].rpartition("@")[0].partition(":")[2]


def mask(text: str, hidden: Sequence[str]) -> str:
    """``text`` with every secret replaced."""
    for secret in hidden:
        text = text.replace(secret, MASK)
    return text


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The services' own log lines are no part of the report."""
    disabled, configured = logging.root.manager.disable, structlog.get_config()
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**configured)
        logging.disable(disabled)
