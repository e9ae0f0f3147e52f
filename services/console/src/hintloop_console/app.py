"""The console's HTTP side: the API, its document, the page. Wiring stands in ``wiring``."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request, Response
from hintloop_contract.errors import DependencyError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from hintloop_console import bodies, events, reading, writing
from hintloop_console.access import COOKIE
from hintloop_console.answers import KnownHosts, SecurityHeaders, SmallBodies, add_error_answers, json_answer
from hintloop_console.deps import ConsoleDeps

#: Built assets carry a hash of their content in their names.
FOREVER = "public, max-age=31536000, immutable"


def make_app(deps: ConsoleDeps, stop: asyncio.Event) -> FastAPI:
    """The console; events end with ``stop``."""
    app = FastAPI(
        title="Hintloop console", version="1", docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json"
    )
    add_error_answers(app)
    app.include_router(reading.router(deps))
    app.include_router(writing.router(deps))
    app.include_router(events.router(deps, stop))
    _add_probes(app, deps)
    static = Path(str(files("hintloop_console"))) / "static"
    if static.is_dir():
        app.mount("/", _Page(directory=static, html=True))
    app.add_middleware(SmallBodies)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)
    app.add_middleware(KnownHosts, names=deps.loaded.config.console.allowed_hosts)
    app.add_middleware(SecurityHeaders)
    return app


def _add_probes(app: FastAPI, deps: ConsoleDeps) -> None:
    @app.get("/health", response_model=bodies.Status)
    @app.get("/api/v1/health", response_model=bodies.Status, include_in_schema=False)
    async def health() -> Response:
        """The process answers."""
        return json_answer({"status": "ok"})

    @app.get("/ready", response_model=bodies.Status)
    @app.get("/api/v1/ready", response_model=bodies.Status, include_in_schema=False)
    async def ready() -> Response:
        """Redis answers, and the history is read."""
        try:
            await deps.broker.time_ms()
        except DependencyError as error:
            return json_answer({"status": "away", "detail": str(error)}, 503)
        if deps.reader.away is not None:
            return json_answer({"status": "away", "detail": f"history: {deps.reader.away}"}, 503)
        return json_answer({"status": "ok"})

    @app.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        deps.access.check_scrape(request.cookies.get(COOKIE), request.headers.get("authorization", ""))
        return Response(generate_latest(deps.registry), media_type=CONTENT_TYPE_LATEST)


class _Page(StaticFiles):
    """The built page: what has a hash in its name is kept by browsers for good, all else is asked for again."""

    def file_response(self, full_path: str, *args: object, **kwargs: object) -> Response:  # type: ignore[override]
        """A file with how long it may be kept."""
        answer = super().file_response(full_path, *args, **kwargs)  # type: ignore[arg-type]
        hashed = Path(full_path).parent.name == "assets"
        answer.headers["Cache-Control"] = FOREVER if hashed else "no-cache"
        return answer
