import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest
from hintloop_console.app import make_app
from hintloop_console.store import Store
from hintloop_console.telling import Teller
from hintloop_console.wiring import deps_of
from hintloop_contract.config import Config, LoadedConfig
from hintloop_contract.history import HistoryBounds
from hintloop_contract.testing.memory import MemoryBroker

#: What the page sends with everything that changes something.
FROM_HERE = {"x-hintloop-console": "1"}


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "console" / "db.sqlite3")
    yield made
    made.close()


@pytest.fixture
def teller(store):
    return Teller(store, keep_turns=100, keep_bytes=10_000_000)


class Site:
    """A console over an in-memory Redis, and a browser in front of it."""

    def __init__(self, deps, broker, client, stop):
        self.deps, self.broker, self.client, self.stop = deps, broker, client, stop

    def tell(self, *entries):
        self.deps.teller.apply(entries)

    async def get(self, path, **more):
        return await self.client.get(f"/api/v1{path}", **more)

    async def json(self, path, **more):
        answer = await self.get(path, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path, body=None, headers=FROM_HERE):
        return await self.client.post(f"/api/v1{path}", json=body, headers=headers)

    async def sign_in(self, password="correct horse"):
        return await self.post("/session", {"password": password})


@pytest.fixture
def make_site(tmp_path):
    @asynccontextmanager
    async def make(arguments=(), **console):
        values = {"database": str(tmp_path / "db.sqlite3"), "password": "correct horse", **console}
        loaded = LoadedConfig(Config.model_validate({"console": values}), {}, tmp_path)
        broker, stop = MemoryBroker("default", history=HistoryBounds(1000, 10_000_000)), asyncio.Event()
        await broker.ensure_groups()
        async with deps_of(loaded, arguments, broker) as deps:
            transport = httpx.ASGITransport(make_app(deps, stop))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
                yield Site(deps, broker, client, stop)
        await broker.close()

    return make


@pytest.fixture
async def site(make_site):
    async with make_site() as made:
        yield made
