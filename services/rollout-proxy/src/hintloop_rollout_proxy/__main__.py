"""Launcher: ``python -m hintloop_rollout_proxy --config FILE [--no-linker]``."""

from __future__ import annotations

import sys

from hintloop_contract.config.arguments import make_parser, resolved
from hintloop_contract.errors import ConfigError, HintloopError


def main() -> None:
    """Parse, set up logs, then import what is heavy and serve."""
    parser = make_parser("rollout-proxy")
    parser.add_argument(
        "--no-linker", action="store_true", help="capture only; another process of this policy runs the linker"
    )
    arguments = parser.parse_args()
    loaded = resolved(parser, arguments)

    from hintloop_contract.logs import configure_logging, log_resolved

    configure_logging("rollout-proxy", loaded.config.logging)
    log_resolved(loaded)

    import uvloop

    from hintloop_rollout_proxy.wiring import serve

    try:
        uvloop.run(serve(loaded.config, with_linker=not arguments.no_linker))
    except ConfigError as error:
        sys.stderr.write(f"rollout-proxy: {error}\n")
        raise SystemExit(2) from None
    except HintloopError as error:
        sys.stderr.write(f"rollout-proxy: {error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
