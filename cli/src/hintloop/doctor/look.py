"""What the checks share: the configuration, connections, and what earlier checks have found. Reads only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from hintloop_contract.config import LoadedConfig
from hintloop_contract.config.schema import Config
from hintloop_contract.diagnosis.figures import Expected, Seen
from hintloop_contract.diagnosis.looking import Recent
from hintloop_contract.errors import HintloopError
from hintloop_contract.opening import open_broker
from hintloop_contract.redis_broker import RedisBroker

from hintloop.funnel import Snapshot

if TYPE_CHECKING:
    from hintloop_judge.app import JudgeDeps
    from hintloop_teacher.app import TeacherDeps

#: Longest wait for one answer of a service, seconds. Engines have the waits of [prm].
SERVICE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer: status and JSON; ``problem`` instead of both when there was none."""

    status: int = 0
    document: Any = None
    problem: str = ""


@dataclass(slots=True)
class Look:
    """One look at a deployment."""

    loaded: LoadedConfig
    session: aiohttp.ClientSession
    broker: RedisBroker
    expected: Expected | None = None
    """What the configuration lets expect; ``None`` where its method cannot be read."""
    alone: bool = False
    """Only the configuration is looked at; nothing is contacted."""
    fresh: bool = False
    """Redis answered; later checks look again, for minutes may have passed."""
    snapshot: Snapshot | None = None
    """What Redis says of the deployment; ``None`` until it was asked, and when it is away."""
    seen: Seen | None = None
    recent: Recent | None = None
    """The same with figures, hints and drops of late, for the recognisers."""
    judge: JudgeDeps | None = None
    teacher: TeacherDeps | None = None
    """Judge and teacher as their services build them; ``None`` where the configuration does not let them be built."""
    teaches: bool = False
    """Whether the PRM engine passed the teacher's probe."""
    spaces: dict[str, str] = field(default_factory=dict)
    """Address of each policy engine to the space of its log-probabilities, as the proxy found it."""

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        return self.loaded.config

    async def get(self, url: str, key: str = "", *, method: str = "GET") -> Answer:
        """``GET url``, or another ``method`` without a body; never raises."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with self.session.request(method, url, headers=headers) as response:
                text = await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return Answer(problem=f"{url}: {type(error).__name__}: {error}".rstrip(": "))
        try:
            return Answer(response.status, json.loads(text))
        except ValueError:
            return Answer(response.status, problem=f"{url} answered {response.status} and no JSON: {text[:120]!r}")


def address(host: str, port: int) -> str:
    """Where to reach what listens on ``host``, from this machine."""
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '::', '') else host}:{port}"


@asynccontextmanager
async def looking(loaded: LoadedConfig, *, alone: bool = False) -> AsyncIterator[Look]:
    """A look at the deployment of ``loaded``; contacts nothing by itself. ``alone``: nor does any check."""
    config = loaded.config
    async with AsyncExitStack() as closing:
        timeout = aiohttp.ClientTimeout(total=SERVICE_TIMEOUT_S)
        session = await closing.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        broker = open_broker(config)
        closing.push_async_callback(broker.close)
        look = Look(loaded, session, broker, alone=alone)
        with suppress(HintloopError):
            look.expected = Expected.of(config, loaded.directory)
        closing.push_async_callback(_close_parts, look)
        yield look


async def _close_parts(look: Look) -> None:
    if look.judge is not None:
        await look.judge.backend.close()
    if look.teacher is not None:
        await look.teacher.engine.close()
        await look.teacher.renderer.close()
