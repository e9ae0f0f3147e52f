"""Which deployment a command talks to: the one of a state directory, or of given configuration files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hintloop_contract.config import load_config
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_contract.opening import open_broker
from hintloop_contract.redis_broker import RedisBroker

from hintloop.errors import StateDirError
from hintloop.local.state_dir import in_use, owner_of


def decided_file(state_dir: Path) -> Path | None:
    """What `up` or `demo` decided in ``state_dir``; ``None`` where nothing was ever started."""
    path = state_dir / "config.toml"
    return path if path.is_file() else None


def config_of(state_dir: Path, files: Sequence[Path], settings: Sequence[Path] = ()) -> Config:
    """The deployment's configuration.

    Raises:
        StateDirError: no stack was ever started in ``state_dir``, and no files are given.
        ConfigError: the configuration is wrong.
    """
    decided = decided_file(state_dir)
    if not files and not settings and decided is None:
        raise StateDirError(
            f"nothing runs in --state-dir {state_dir}, and no stack was ever started there. Start one with "
            f"{how_to_start(state_dir)}, or give --state-dir or --config of another deployment"
        )
    return load_config([*files, *([decided] if decided else [])], settings=settings).config


@asynccontextmanager
async def broker_of(
    state_dir: Path, files: Sequence[Path], settings: Sequence[Path] = ()
) -> AsyncIterator[RedisBroker]:
    """The deployment's broker.

    Raises:
        StateDirError: there is no deployment, or its Redis does not answer (also from inside the context).
    """
    config = config_of(state_dir, files, settings)
    broker = open_broker(config)
    try:
        yield broker
    except DependencyError as error:
        raise StateDirError(_nothing_answers(state_dir, error)) from error
    finally:
        await broker.close()


def how_to_start(state_dir: Path) -> str:
    """The command that starts a stack there."""
    return f"`hintloop {owner_of(state_dir)} --state-dir {state_dir}`"


def _nothing_answers(state_dir: Path, error: DependencyError) -> str:
    if decided_file(state_dir) is None:
        return f"the deployment's Redis does not answer; start it, or correct redis.url in --config ({error})"
    if in_use(state_dir):
        return f"the stack in --state-dir {state_dir} is starting or stopping; ask again in some seconds ({error})"
    return f"nothing runs in --state-dir {state_dir}; start it with {how_to_start(state_dir)} ({error})"
