"""`python -m hintloop_judge`: parse the configuration, set up logs, then import what is heavy and run."""

from __future__ import annotations

import asyncio
import sys

from hintloop_contract.config import LoadedConfig, parse_arguments
from hintloop_contract.errors import HintloopError
from hintloop_contract.logs import configure_logging, log_resolved


async def run(loaded: LoadedConfig) -> None:
    """Serve and judge until a signal."""
    from hintloop_contract.opening import open_broker

    from hintloop_judge.app import make_app
    from hintloop_judge.serving import serve
    from hintloop_judge.wiring import build_deps, run_worker

    broker, prm = open_broker(loaded.config), loaded.config.prm
    try:
        deps = await build_deps(loaded.config, broker, directory=loaded.directory)
        await serve(make_app(deps), prm.host, prm.port, lambda stop: run_worker(deps, stop))
    finally:
        await broker.close()


def main() -> None:
    """Entry point. What a user can mend ends the process with exit code 2 and its message."""
    loaded = parse_arguments("judge")
    configure_logging("judge", loaded.config.logging)
    log_resolved(loaded)
    try:
        asyncio.run(run(loaded))
    except HintloopError as error:
        sys.stderr.write(f"judge: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
