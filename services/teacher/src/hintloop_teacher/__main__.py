"""`python -m hintloop_teacher`: parse the configuration, set up logs, then import what is heavy and run."""

from __future__ import annotations

import asyncio
import sys

from hintloop_contract.config import LoadedConfig, parse_arguments
from hintloop_contract.errors import HintloopError
from hintloop_contract.logs import configure_logging, log_resolved


async def run(loaded: LoadedConfig) -> None:
    """Serve HTTP and gRPC, and teach the stream, until a signal."""
    from hintloop_contract.opening import open_broker

    from hintloop_teacher.app import make_app
    from hintloop_teacher.grpc_server import listening
    from hintloop_teacher.serving import serve
    from hintloop_teacher.wiring import build_deps, run_worker

    broker, prm = open_broker(loaded.config), loaded.config.prm
    try:
        deps = await build_deps(loaded.config, broker, directory=loaded.directory)
        async with listening(deps):
            await serve(make_app(deps), prm.host, prm.port, lambda stop: run_worker(deps, stop))
    finally:
        await broker.close()


def main() -> None:
    """Entry point. What a user can mend ends the process with exit code 2 and its message."""
    loaded = parse_arguments("teacher")
    configure_logging("teacher", loaded.config.logging)
    log_resolved(loaded)
    try:
        asyncio.run(run(loaded))
    except HintloopError as error:
        sys.stderr.write(f"teacher: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
