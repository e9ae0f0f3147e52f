"""The routes by which engines receive weights in a process group, with a worker that really joins it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from aiohttp import web

from .fake_engines import FakeEngine

TIMEOUT = timedelta(seconds=60)


def join(address: str, port: int, world_size: int, name: str) -> Any:
    """A worker's end of a group, outside of any world."""
    # torch's own stubs leave these out.
    c10d: Any = dist
    store = c10d.TCPStore(address, port, world_size, is_master=False, timeout=TIMEOUT)
    for prefix in (name, f"{name}/", "cpu/"):
        store = c10d.PrefixStore(prefix, store)
    return c10d.ProcessGroupGloo(store, 1, world_size, TIMEOUT)


class FakeGroupEngine(FakeEngine):
    """A fake engine of either dialect that receives tensors; ``hang`` and ``refuse`` hold steps that go wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.received: dict[str, torch.Tensor] = {}
        self.joined = 0
        self.group: Any = None
        self.session = False
        self.hang: set[str] = set()
        self.refuse: set[str] = set()
        self.cut: set[str] = set()
        self.released = asyncio.Event()

    def restart(self) -> None:
        """Forget everything, as a new process would."""
        self.group, self.session, self.version, self.directory = None, False, "default", None

    def app(self) -> web.Application:
        app = super().app()
        steps: dict[str, Callable[[dict[str, Any]], Any]] = {
            "/init_weights_update_group": self._meet,
            "/init_weight_transfer_engine": self._meet,
            "/destroy_weights_update_group": self._leave,
            "/shutdown_weight_transfer_engine": self._leave,
            "/begin_weight_update": self._begin,
            "/start_weight_update": self._begin,
            "/update_weights_from_distributed": self._receive,
            "/update_weights": self._receive,
            "/end_weight_update": self._end,
            "/finish_weight_update": self._end,
        }
        for path, step in steps.items():
            app.router.add_post(path, self._route(path, step))
        app.router.add_get("/get_world_size", self._world_size)
        app.router.add_get("/server_info", self._world_size)
        return app

    def _route(self, path: str, step: Callable[[dict[str, Any]], Any]) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.json() if request.can_read_body else {}
            if path in self.hang:
                await self.released.wait()
            if path in self.cut:
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            if path in self.refuse:
                return web.json_response({"success": False, "message": "refused"}, status=400)
            problem = await step(body)
            status = 400 if problem else 200
            return web.json_response({"success": not problem, "message": problem or ""}, status=status)

        return handle

    async def _world_size(self, request: web.Request) -> web.Response:
        return web.json_response({"world_size": 1, "tp_size": 1})

    async def _meet(self, body: dict[str, Any]) -> str | None:
        asked = body.get("init_info", body)
        assert asked["rank_offset"] == 1 and asked["backend"] == "gloo"
        self.group = await asyncio.to_thread(
            join, asked["master_address"], asked["master_port"], asked["world_size"], asked["group_name"]
        )
        self.joined += 1
        return None

    async def _leave(self, body: dict[str, Any]) -> str | None:
        self.group = None
        return None

    async def _begin(self, body: dict[str, Any]) -> str | None:
        if self.session:
            return "a weight-update session is already open"
        self.session = True
        self.received = {}
        return None

    async def _receive(self, body: dict[str, Any]) -> str | None:
        asked = body.get("update_info", body)
        if "abandon" in asked:
            self.session = False
            return "abandoned"
        if not self.session:
            return "no session"
        if self.group is None:
            return "no group"
        assert self.paused
        for name, dtype, shape in zip(asked["names"], asked["dtypes"], asked["shapes"], strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            await asyncio.to_thread(self._take, tensor)
            self.received[name] = tensor
        self.version = asked.get("weight_version", self.version)
        return None

    def _take(self, tensor: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self.group.broadcast([tensor], options).wait()

    async def _end(self, body: dict[str, Any]) -> str | None:
        if not self.session:
            return "no session"
        self.session = False
        return None
