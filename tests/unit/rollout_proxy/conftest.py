"""A scripted engine that replays recorded answers, and the real proxy in front of it on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hintloop_contract.broker import Entry
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Capture
from hintloop_contract.streams import CAPTURES
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy.deps import ProxyDeps
from hintloop_rollout_proxy.wiring import make_deps, make_server, running

WIRE = Path(__file__).parents[2] / "fixtures" / "wire"
#: Header by which the fake engine tells an agent's request from the probe's.
AGENT = "x-agent"
Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    """The streams, in memory."""
    memory = MemoryBroker()
    await memory.ensure_groups()
    yield memory
    await memory.close()


def load_wire(engine: str, name: str) -> dict[str, Any]:
    """A recorded exchange."""
    recorded: dict[str, Any] = json.loads((WIRE / engine / f"{name}.json").read_text())
    return recorded


def body_bytes(recorded: dict[str, Any]) -> bytes:
    """A recorded body in the engines' own compact layout."""
    body = recorded["body"]
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


@dataclass
class FakeEngine:
    """Answers chat requests by ``reply``; health, models and the start-up probe by itself."""

    kind: str = "vllm"
    url: str = ""
    model: str = "engine-name"
    tempered: bool = True
    healthy: bool = True
    seen: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    reply: Reply | None = None
    own: Reply | None = None
    """Answers at every path that has no method of its own."""
    neutral: bool = True
    adapters: list[str] = field(default_factory=list)
    sampled_ids: list[int] = field(default_factory=lambda: [7, 8])
    num_probes: int = 0
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    probes_may_end: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.probes_may_end.set()

    def replay(self, *names: str, split: int | None = None) -> None:
        """Answer with recorded exchanges in turn; a stream is cut into pieces of ``split`` bytes."""
        left = list(names)

        async def reply(request: web.Request) -> web.StreamResponse:
            recorded = load_wire(self.kind, left.pop(0) if len(left) > 1 else left[0])
            data, content_type = body_bytes(recorded), recorded["headers"]["content-type"]
            if split is None:
                return web.Response(body=data, status=recorded["status"], headers={"content-type": content_type})
            response = web.StreamResponse(status=recorded["status"], headers={"content-type": content_type})
            await response.prepare(request)
            for start in range(0, len(data), split):
                await response.write(data[start : start + split])
            await response.write_eof()
            return response

        self.reply = reply

    async def chat(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((headers, await request.json()))
        assert self.reply is not None
        try:
            return await self.reply(request)
        except (asyncio.CancelledError, ConnectionResetError):
            self.hung_up.set()
            raise

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def models(self, request: web.Request) -> web.Response:
        adapters = [{"id": name, "object": "model", "parent": self.model} for name in self.adapters]
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}, *adapters]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """vLLM's side of the probe: scores of -2 nats a token, sampled ones halved when tempered."""
        if AGENT in request.headers:
            return await self.chat(request)
        self.num_probes += 1
        await self.probes_may_end.wait()
        asked = await request.json()
        if asked.get("logprobs"):
            scale = 1.0 if self.neutral or "temperature" in asked else 1.5
            top = {f"token_id:{token}": -0.5 * scale * (token + 1) for token in range(5)}
            return web.json_response({"choices": [{"logprobs": {"top_logprobs": [top]}}]})
        if "prompt_logprobs" in asked:
            ids = asked["prompt"]
            scores = [None, *({str(token): {"logprob": -2.0}} for token in ids[1:])]
            return web.json_response({"choices": [{"prompt_logprobs": scores}]})
        value = -1.0 if self.tempered else -2.0
        logprobs = {"token_logprobs": [value, value]}
        choice = {"prompt_token_ids": [5, 6], "token_ids": self.sampled_ids, "logprobs": logprobs}
        return web.json_response({"choices": [choice]})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """SGLang's side of the probe."""
        if AGENT in request.headers:
            return await self.chat(request)
        self.num_probes += 1
        await self.probes_may_end.wait()
        asked = await request.json()
        if "input_ids" in asked:
            entries = [[None if i == 0 else -2.0, token, None] for i, token in enumerate(asked["input_ids"])]
            return web.json_response({"meta_info": {"input_token_logprobs": entries}})
        value = -1.0 if self.tempered else -2.0
        meta = {
            "input_token_logprobs": [[None, 5, None], [-2.0, 6, None]],
            "output_token_logprobs": [[value, 7, None], [value, 8, None]],
        }
        return web.json_response({"meta_info": meta})

    async def server_info(self, request: web.Request) -> web.Response:
        return web.json_response({"sampling_defaults": "openai" if self.neutral else "model"})

    async def other(self, request: web.Request) -> web.StreamResponse:
        if self.own is not None:
            return await self.own(request)
        headers = {name: value for name, value in request.headers.items()}
        body = (await request.read()).decode()
        return web.json_response({"path": request.path_qs, "headers": headers, "body": body}, status=418)

    def app(self) -> web.Application:
        app = web.Application(handler_args={"handler_cancellation": True})
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/server_info", self.server_info)
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_route("*", "/{rest:.*}", self.other)
        return app


@pytest.fixture
async def fake_engine() -> AsyncIterator[FakeEngine]:
    engine = FakeEngine()
    runner = web.AppRunner(engine.app(), handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield engine
    await runner.cleanup()


@dataclass
class RunningProxy:
    """The proxy on a socket; ``captures`` takes what it wrote."""

    url: str
    deps: ProxyDeps
    broker: Any
    session: aiohttp.ClientSession

    async def captures(self, count: int = 1) -> list[Capture]:
        """The next ``count`` captures; fails when they do not come."""
        found: list[Entry[Any]] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                found += await self.broker.read(CAPTURES, "test", 100, None)
                await asyncio.sleep(0.01)
        return [entry.message for entry in found]

    async def ask(self, body: dict[str, Any], **headers: str) -> tuple[int, bytes]:
        """POST a chat completion; status and body."""
        return await self.post("/v1/chat/completions", body, **headers)

    async def post(self, path: str, body: dict[str, Any], **headers: str) -> tuple[int, bytes]:
        """POST to any path; status and body."""
        named = {AGENT: "1", **{name.replace("_", "-"): value for name, value in headers.items()}}
        async with self.session.post(self.url + path, json=body, headers=named) as response:
            return response.status, await response.read()


def make_config(engine: FakeEngine, spool_dir: Path, **changes: dict[str, Any]) -> Config:
    """A configuration for ``engine``; ``changes`` are merged by section."""
    values: dict[str, dict[str, Any]] = {
        "rollout": {"engine": engine.kind},
        "policy": {"engines": [engine.url], "served_model_name": "policy"},
        "proxy": {"port": 1, "spool_dir": spool_dir, "engine_wait_s": 0.0},
    }
    for section, change in changes.items():
        values.setdefault(section, {}).update(change)
    return Config.model_validate(values)


StartProxy = Callable[..., AbstractAsyncContextManager[RunningProxy]]


@asynccontextmanager
async def start_proxy(config: Config, broker: Any, probed: bool = True) -> AsyncIterator[RunningProxy]:
    """Run the real proxy over ``broker`` until the block ends; ``probed``: once it knows what it can of its engines."""
    async with make_deps(config, broker) as deps, running(deps):
        server = make_server(deps)
        server.config.port = 0
        serving = asyncio.create_task(server.serve())
        try:
            async with asyncio.timeout(60):
                while not server.started and not serving.done():
                    await asyncio.sleep(0.005)
                while probed and not all(
                    known["behaviour_space"] or known["problem"] for known in deps.watch.describe()
                ):
                    await asyncio.sleep(0.005)
            port = server.servers[0].sockets[0].getsockname()[1]
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90)) as session:
                yield RunningProxy(f"http://127.0.0.1:{port}", deps, broker, session)
        finally:
            server.should_exit = True
            await serving


@pytest.fixture
def proxy(fake_engine: FakeEngine, tmp_path: Path) -> StartProxy:
    """Starts a proxy before the fake engine: ``async with proxy(section={…}) as running``."""

    @asynccontextmanager
    async def start(broker: Any = None, probed: bool = True, **changes: dict[str, Any]) -> AsyncIterator[RunningProxy]:
        own = MemoryBroker() if broker is None else broker
        await own.ensure_groups()
        config = make_config(fake_engine, tmp_path / "spool", **changes)
        async with start_proxy(config, own, probed) as running_proxy:
            yield running_proxy
        if broker is None:
            await own.close()

    return start


@pytest.fixture
def wire() -> Callable[[str, str], dict[str, Any]]:
    return load_wire
