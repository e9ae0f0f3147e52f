"""`python -m hintloop.local.prm`: judge and teacher in one process, behind the one `_prm_url`.

Owns nothing of either: their routes are mounted side by side and their stream workers run on one loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from hintloop_contract.config import LoadedConfig, parse_arguments
from hintloop_contract.errors import HintloopError
from hintloop_contract.logs import configure_logging, log_resolved
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from hintloop.local.tasks import together

Part = Callable[[], dict[str, Any]]


def joined_app(
    routers: Sequence[APIRouter],
    parts: Mapping[str, Part],
    registry: CollectorRegistry,
    caller: Callable[[Request], Awaitable[object]],
) -> FastAPI:
    """The services' routes, `/v1/prm` with what each of them says about itself, and what needs no key.

    That is `/health`, `/metrics`, and `/ready`: 200 once the teacher knows its engine, or needs none. ``caller`` is
    the dependency that checks the key.
    """
    app = FastAPI(title="Hintloop PRM", description="OpenAPI at `/openapi.json`.", redoc_url=None)
    for router in routers:
        app.include_router(router)

    @app.get("/v1/prm", dependencies=[Depends(caller)])
    async def prm() -> dict[str, dict[str, Any]]:
        return {name: part() for name, part in parts.items()}

    @app.get("/ready")
    async def ready(response: Response) -> dict[str, bool]:
        teacher = parts["teacher"]()
        is_ready = bool(teacher["probed"] or not teacher["needed"])
        response.status_code = 200 if is_ready else 503
        return {"ready": is_ready}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def run(loaded: LoadedConfig) -> None:
    """Serve both and work on both streams until a signal, or until either fails."""
    from hintloop_contract.opening import open_broker
    from hintloop_judge import app as judge_app
    from hintloop_judge import wiring as judge
    from hintloop_judge.auth import require_key
    from hintloop_judge.serving import serve
    from hintloop_teacher import app as teacher_app
    from hintloop_teacher import wiring as teacher
    from hintloop_teacher.grpc_server import listening

    config, registry = loaded.config, CollectorRegistry()
    broker = open_broker(config)
    try:
        judging = await judge.build_deps(config, broker, directory=loaded.directory, registry=registry)
        teaching = await teacher.build_deps(config, broker, directory=loaded.directory, registry=registry)
        parts = {"judge": lambda: judge_app.prm_part(judging), "teacher": lambda: teacher_app.prm_part(teaching)}
        routers = [judge_app.router(judging), teacher_app.router(teaching)]
        app = joined_app(routers, parts, registry, require_key(config.prm.api_keys))

        async def work(stop: asyncio.Event) -> None:
            await together(judge.run_worker(judging, stop), teacher.run_worker(teaching, stop))

        async with listening(teaching):
            await serve(app, config.prm.host, config.prm.port, work)
    finally:
        await broker.close()


def main() -> None:
    """Entry point."""
    loaded = parse_arguments("hintloop.local.prm")
    log = configure_logging("prm", loaded.config.logging)
    log_resolved(loaded)
    try:
        asyncio.run(run(loaded))
    except HintloopError as error:
        log.error("prm ended", error=type(error).__name__, detail=str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
