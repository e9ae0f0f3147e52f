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
from hintloop.local.state_dir import in_use, owner_of


def run_status(state_dir: Path, files: Sequence[Path], *, as_json: bool) -> None:
    """Print one look at a deployment: the one of ``state_dir``, or of the given configuration.

    Raises:
        StateDirError: nothing was ever started there, or it does not run now.
    """
    decided = state_dir / "config.toml"
    if not files and not decided.is_file():
        raise StateDirError(
            f"nothing runs in --state-dir {state_dir}, and no stack was ever started there. Start one with "
            f"{_how_to_start(state_dir)}, or give --state-dir or --config of another deployment"
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
        raise StateDirError(_nothing_answers(state_dir, error, own=decided.is_file())) from error
    if decided.is_file() and not in_use(state_dir):
        typer.echo(
            f"hintloop: nothing runs in {state_dir} now, start it with {_how_to_start(state_dir)}; "
            "this is what its Redis still counts",
            err=True,
        )
    if as_json:
        typer.echo(json.dumps(snapshot.as_dict(), indent=2))
    else:
        Console().print(funnel.render(snapshot))


def _how_to_start(state_dir: Path) -> str:
    return f"`hintloop {owner_of(state_dir)} --state-dir {state_dir}`"


def _nothing_answers(state_dir: Path, error: DependencyError, *, own: bool) -> str:
    if not own:
        return f"the deployment's Redis does not answer; start it, or correct redis.url in --config ({error})"
    if in_use(state_dir):
        return f"the stack in --state-dir {state_dir} is starting or stopping; ask again in some seconds ({error})"
    return f"nothing runs in --state-dir {state_dir}; start it with {_how_to_start(state_dir)} ({error})"
