"""`python -m hintloop_teacher`: parse the configuration, set up logs, then import what is heavy and run."""

from __future__ import annotations

import asyncio

from hintloop_contract.config import LoadedConfig, parse_arguments
from hintloop_contract.logs import configure_logging, log_resolved


async def run(loaded: LoadedConfig) -> None:
    """Serve HTTP and teach the stream until a signal."""
    from hintloop_contract.redis_broker import RedisBroker, connect

    from hintloop_teacher.app import make_app
    from hintloop_teacher.serving import serve
    from hintloop_teacher.wiring import build_deps, run_worker

    config = loaded.config
    client = connect(config.redis.url.get_secret_value())
    broker = RedisBroker(client, config.policy.name, turn_retention_s=config.redis.turn_retention_s)
    try:
        deps = await build_deps(config, broker, directory=loaded.directory)
        await serve(make_app(deps), config.prm.host, config.prm.port, lambda stop: run_worker(deps, stop))
    finally:
        await broker.close()


def main() -> None:
    """Entry point."""
    loaded = parse_arguments("teacher")
    configure_logging("teacher", loaded.config.logging)
    log_resolved(loaded)
    asyncio.run(run(loaded))


if __name__ == "__main__":
    main()
