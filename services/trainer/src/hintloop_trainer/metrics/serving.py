"""The trainer's HTTP side: `/metrics` and `/health`, in the background thread."""

from __future__ import annotations

import asyncio
import socket

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


def make_app(registry: CollectorRegistry) -> web.Application:
    """``GET /metrics`` and ``GET /health``."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/health", health)
    return app


async def serve(registry: CollectorRegistry, listening: socket.socket, stop: asyncio.Event) -> None:
    """Serve on ``listening`` until ``stop``; closes it."""
    runner = web.AppRunner(make_app(registry), access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        await stop.wait()
    finally:
        await runner.cleanup()
