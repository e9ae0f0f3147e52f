"""`python -m hintloop_console`: parse the configuration, set up logs, then import what is heavy and run."""

from __future__ import annotations

import asyncio
import sys

from hintloop_contract.config import LoadedConfig, parse_arguments
from hintloop_contract.errors import HintloopError
from hintloop_contract.logs import configure_logging, log_resolved


async def run(loaded: LoadedConfig, arguments: list[str]) -> None:
    """Serve until a signal. ``arguments`` are those of this process; doctor is started with the same."""
    from hintloop_console.app import make_app
    from hintloop_console.serving import serve
    from hintloop_console.wiring import deps_of, work

    section, stop = loaded.config.console, asyncio.Event()
    async with deps_of(loaded, arguments) as deps:
        await serve(make_app(deps, stop), section.host, section.port, lambda ends: work(deps, ends), stop)


def main() -> None:
    """Entry point. What a user can mend ends the process with exit code 2 and its message."""
    loaded = parse_arguments("console")
    configure_logging("console", loaded.config.logging)
    log_resolved(loaded)
    try:
        asyncio.run(run(loaded, sys.argv[1:]))
    except HintloopError as error:
        sys.stderr.write(f"console: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
