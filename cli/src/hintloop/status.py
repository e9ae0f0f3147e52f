"""`hintloop status`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import typer
from hintloop_contract.config import load_config
from hintloop_contract.errors import DependencyError
from hintloop_contract.redis_broker import RedisBroker, connect
from rich.console import Console

from hintloop import funnel
from hintloop.errors import StateDirError


def run_status(state_dir: Path, files: Sequence[Path], *, as_json: bool) -> None:
    """Print one look at a deployment: the one of ``state_dir``, or of the given configuration.

    Raises:
        StateDirError: nothing was ever started there, or it does not run now.
    """
    decided = state_dir / "config.toml"
    if not files and not decided.is_file():
        raise StateDirError(
            f"--state-dir {state_dir} holds no config.toml: no stack was started there. "
            "Start one with `hintloop up`, or give --config of the deployment"
        )
    config = load_config([*files, *([decided] if decided.is_file() else [])]).config
    url = config.redis.url.get_secret_value()

    async def look() -> funnel.Snapshot:
        broker = RedisBroker(connect(url), config.policy.name)
        try:
            return await funnel.take(broker)
        finally:
            await broker.close()

    try:
        snapshot = asyncio.run(look())
    except DependencyError as error:
        raise StateDirError(f"the deployment of {state_dir} does not answer ({error}); is it running?") from error
    if as_json:
        typer.echo(json.dumps(snapshot.as_dict(), indent=2))
    else:
        Console().print(funnel.render(snapshot))
