"""`hintloop doctor`. Owns where the configuration is found, the masking of secrets, and the exit code."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
import typer
from hintloop_contract.config import LoadedConfig, load_config
from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import ConfigError
from hintloop_contract.logs import MASK
from pydantic import BaseModel, SecretStr
from rich.console import Console

from hintloop.deployment import decided_file
from hintloop.doctor import show, stations
from hintloop.doctor.finding import Outcome, fail
from hintloop.doctor.look import looking
from hintloop.doctor.stations import Visit
from hintloop.errors import CommandError

#: Exit codes: nothing wrong, something wrong, something that will disappoint.
CODES = {Outcome.OK: 0, Outcome.FAIL: 1, Outcome.WARN: 3}


def run_doctor(
    state_dir: Path, files: Sequence[Path], settings: Sequence[Path], only: Sequence[str], *, as_json: bool
) -> None:
    """Walk the chain and report. Exits 0 when all is well, 3 with warnings alone, 1 with a failure.

    Raises:
        CommandError: ``only`` names no station.
    """
    for name in only:
        if name not in stations.NAMES:
            near = difflib.get_close_matches(name, stations.NAMES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise CommandError(f"--only {name!r} is no station{hint}; there are {', '.join(stations.NAMES)}")
    _quiet()
    decided = decided_file(state_dir)
    try:
        loaded = load_config([*files, *([decided] if decided else [])], settings=settings)
    except ConfigError as error:
        visits = [Visit("configuration", [fail("configuration", str(error), Cause.CONFIGURATION_INVALID)], 0.0)]
        _print(visits, as_json=as_json)
        raise typer.Exit(CODES[Outcome.FAIL]) from None
    visits = asyncio.run(_walk(loaded, only, as_json=as_json))
    raise typer.Exit(CODES[stations.worst(visits)])


async def _walk(loaded: LoadedConfig, only: Sequence[str], *, as_json: bool) -> list[Visit]:
    hidden = secrets(loaded.config)
    console = Console()

    def tell(visit: Visit) -> None:
        if not as_json:
            show.tell(console, masked(visit, hidden))

    async with looking(loaded) as look:
        visits = await stations.visit(look, stations.chosen(only), tell)
    if as_json:
        _print([masked(visit, hidden) for visit in visits], as_json=True)
    else:
        show.conclude(console, visits)
    return visits


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


def _print(visits: Sequence[Visit], *, as_json: bool) -> None:
    if as_json:
        typer.echo(show.as_json(visits))
        return
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


def _quiet() -> None:
    """The services' own log lines are no part of the report."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
