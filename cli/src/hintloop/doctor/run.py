"""`hintloop doctor`. Owns where the configuration is found, the masking of secrets, and the exit code."""

from __future__ import annotations

import asyncio
import difflib
import io
import logging
from collections.abc import Sequence
from pathlib import Path

import structlog
import typer
from hintloop_contract.config import LoadedConfig, load_config
from hintloop_contract.errors import ConfigError
from pydantic import BaseModel, SecretStr
from rich.console import Console

from hintloop.doctor import show, stations
from hintloop.doctor.causes import Cause
from hintloop.doctor.finding import Outcome, fail
from hintloop.doctor.look import looking
from hintloop.doctor.stations import Visit
from hintloop.errors import CommandError

#: Exit codes: nothing wrong, something wrong, something that will disappoint.
CODES = {Outcome.OK: 0, Outcome.FAIL: 1, Outcome.WARN: 3}
MASK = "********"


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
    decided = state_dir / "config.toml"
    try:
        loaded = load_config([*files, *([decided] if decided.is_file() else [])], settings=settings)
    except ConfigError as error:
        visits = [Visit("configuration", [fail("configuration", str(error), Cause.CONFIGURATION_INVALID)], 0.0)]
        _print(visits, [], as_json=as_json)
        raise typer.Exit(CODES[Outcome.FAIL]) from None
    visits = asyncio.run(_walk(loaded, only, as_json=as_json))
    raise typer.Exit(CODES[stations.worst(visits)])


async def _walk(loaded: LoadedConfig, only: Sequence[str], *, as_json: bool) -> list[Visit]:
    hidden = secrets(loaded.config)
    console = Console()

    def tell(visit: Visit) -> None:
        if not as_json:
            console.file.write(_masked(console, visit, hidden))

    async with looking(loaded) as look:
        visits = await stations.visit(look, stations.chosen(only), tell)
    if as_json:
        _print(visits, hidden, as_json=True)
    else:
        show.conclude(console, visits)
    return visits


def _masked(console: Console, visit: Visit, hidden: Sequence[str]) -> str:
    """One station's lines, drawn for ``console``, without any secret."""
    drawn = Console(
        file=io.StringIO(),
        width=console.width,
        force_terminal=console.is_terminal,
        color_system=console.color_system,  # type: ignore[arg-type]  # rich types what it gives back as a string
    )
    show.tell(drawn, visit)
    assert isinstance(drawn.file, io.StringIO)
    return mask(drawn.file.getvalue(), hidden)


def _print(visits: Sequence[Visit], hidden: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        typer.echo(mask(show.as_json(visits), hidden))
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
                found.add(text.partition("@")[0].rpartition(":")[2] if "://" in text and "@" in text else text)
    return sorted((text for text in found if text and "://" not in text), key=len, reverse=True)


def mask(text: str, hidden: Sequence[str]) -> str:
    """``text`` with every secret replaced."""
    for secret in hidden:
        text = text.replace(secret, MASK)
    return text


def _quiet() -> None:
    """The services' own log lines are no part of the report."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
