"""Launcher: ``python -m hintloop_rollout_proxy --config FILE [--no-linker]``."""

from __future__ import annotations

import sys

from hintloop_contract.config import parse_arguments
from hintloop_contract.errors import ConfigError, HintloopError


def main() -> None:
    """Parse, set up logs, then import what is heavy and serve."""
    arguments = sys.argv[1:]
    with_linker = "--no-linker" not in arguments
    loaded = parse_arguments("rollout-proxy", [word for word in arguments if word != "--no-linker"])

    from hintloop_contract.logs import configure_logging, log_resolved

    configure_logging("rollout-proxy", loaded.config.logging)
    log_resolved(loaded)

    import uvloop

    from hintloop_rollout_proxy.wiring import serve

    try:
        uvloop.run(serve(loaded.config, with_linker=with_linker))
    except ConfigError as error:
        sys.stderr.write(f"rollout-proxy: {error}\n")
        raise SystemExit(2) from None
    except HintloopError as error:
        sys.stderr.write(f"rollout-proxy: {error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
