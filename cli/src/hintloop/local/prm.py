"""`python -m hintloop.local.prm`: judge and teacher in one process, behind the one `_prm_url`.

Owns nothing of either: their routes are mounted side by side and their stream workers run on one loop.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, FastAPI
from hintloop_contract.config import LoadedConfig, parse_arguments
from hintloop_contract.logs import configure_logging, log_resolved


def joined_app(routers: list[APIRouter], parts: dict[str, dict[str, object]]) -> FastAPI:
    """The services' routes, and `/v1/prm` with what each of them says about itself."""
    app = FastAPI(title="Hintloop PRM", docs_url=None, redoc_url=None)
    for router in routers:
        app.include_router(router)

    @app.get("/v1/prm")
    async def prm() -> dict[str, dict[str, object]]:
        return parts

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


async def run(loaded: LoadedConfig) -> None:
    """Serve both and work on both streams until a signal, or until either fails."""
    from hintloop_contract.redis_broker import RedisBroker, connect
    from hintloop_judge import app as judge_app
    from hintloop_judge import wiring as judge
    from hintloop_judge.serving import serve
    from hintloop_teacher import app as teacher_app
    from hintloop_teacher import wiring as teacher

    config = loaded.config
    client = connect(config.redis.url.get_secret_value())
    broker = RedisBroker(client, config.policy.name, turn_retention_s=config.redis.turn_retention_s)
    try:
        judging = await judge.build_deps(config, broker, directory=loaded.directory)
        teaching = await teacher.build_deps(config, broker, directory=loaded.directory)
        parts = {"judge": judge_app.prm_part(judging), "teacher": teacher_app.prm_part(teaching)}
        app = joined_app([judge_app.router(judging), teacher_app.router(teaching)], parts)

        async def work(stop: asyncio.Event) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(judge.run_worker(judging, stop))
                group.create_task(teacher.run_worker(teaching, stop))

        await serve(app, config.prm.host, config.prm.port, work)
    finally:
        await broker.close()


def main() -> None:
    """Entry point."""
    loaded = parse_arguments("hintloop.local.prm")
    configure_logging("prm", loaded.config.logging)
    log_resolved(loaded)
    asyncio.run(run(loaded))


if __name__ == "__main__":
    main()
