"""`hintloop status`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.live import Live

from hintloop import funnel
from hintloop.deployment import broker_of, decided_file, how_to_start
from hintloop.local.state_dir import in_use

#: Seconds between looks under `--watch`.
WATCH_S = 2.0


def run_status(
    state_dir: Path, files: Sequence[Path], settings: Sequence[Path] = (), *, as_json: bool, watch: bool = False
) -> None:
    """Print one look at a deployment, or one after the other in place until Ctrl-C.

    The deployment is that of ``state_dir``, or of the given configuration.

    Raises:
        StateDirError: nothing was ever started there, or it does not run now.
    """
    if watch:
        _watch(state_dir, files, settings)
        return
    snapshot = _look(state_dir, files, settings)
    if decided_file(state_dir) and not in_use(state_dir):
        typer.echo(
            f"hintloop: nothing runs in {state_dir} now, start it with {how_to_start(state_dir)}; "
            "this is what its Redis still counts",
            err=True,
        )
    if as_json:
        typer.echo(json.dumps(snapshot.as_dict(), indent=2))
    else:
        Console().print(funnel.render(snapshot))


def _look(state_dir: Path, files: Sequence[Path], settings: Sequence[Path]) -> funnel.Snapshot:
    async def look() -> funnel.Snapshot:
        async with broker_of(state_dir, files, settings) as broker:
            return await funnel.take(broker)

    return asyncio.run(look())


def _watch(state_dir: Path, files: Sequence[Path], settings: Sequence[Path]) -> None:
    """Show one look after the other in place; ends with the deployment, or with Ctrl-C."""
    first = funnel.render(_look(state_dir, files, settings))
    with Live(first, screen=False, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_S)
            live.update(funnel.render(_look(state_dir, files, settings)), refresh=True)
