"""Faults between trainer and engines: weights that do not arrive, or are not what an engine answers with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import engines
from .agent import Day
from .deployment import Deployment
from .fault import Fault
from .wire import Asked, Change, Wire, answering, refusing, rewriting

RELOAD = "/collective_rpc"
FLUSH = "/reset_prefix_cache"
#: An agent whose later prompts are longer than a block of an engine's cache (128 tokens on CPU): shorter ones are in
#: none. From the third on they are, and the last is in no history, for nothing follows it.
LONG_WINDED = Day(
    turns=5,
    replies=(
        "That is too long. Keep it short please. I read these answers on a small screen while I stand in a crowded "
        "train, and I have to scroll up and down all the time to find the one thing that I asked for at the beginning.",
        "No. Write it as a numbered list. I want to copy it into the notes of our next meeting, where everybody looks "
        "at one line after the other, and where nobody has the time to read a whole paragraph about a single point.",
    ),
)
#: The version under which the student's own weights are released first.
FIRST_RELEASE = "1"


@contextmanager
def step_that_is_not_published(stack: Deployment, *changes: Change) -> Iterator[None]:
    """A step is made while engines take no weights; they are published once that is lifted."""
    before = stack.step()
    with stack.policy_wire.changed(*changes):
        stack.talk(1, Day(turns=3))
        stack.wait_for("a step", lambda: stack.step() > before, 120.0)
        stack.wait_for("a failed release", lambda: stack.updating() or _failed(stack), 60.0)
        yield
    stack.wait_for("the release", stack.settled, 120.0)


def _failed(stack: Deployment) -> bool:
    phase = stack.redis.hget("hl:{faults}:status:trainer", "phase")
    return bool(phase and b"failed" in phase)


@contextmanager
def no_room(stack: Deployment) -> Iterator[None]:
    """Every load of weights fails inside the engine."""
    result = {"success": False, "message": "OSError: [Errno 28] No space left on device"}
    with step_that_is_not_published(stack, answering(RELOAD, {"results": [result]})):
        yield


@contextmanager
def closed_routes(stack: Deployment) -> Iterator[None]:
    """The engine was started without the routes by which it is given weights."""
    closed = [refusing(path, 404, "Not Found") for path in ("/pause", RELOAD, FLUSH, "/update_weight_version")]
    with step_that_is_not_published(stack, *closed):
        yield


def _named(version: str) -> Change:
    return rewriting("/weight_info", lambda asked, body: {**body, "weight_version": version})


@contextmanager
def beside(stack: Deployment, wire: Wire) -> Iterator[None]:
    """A second engine at ``wire``, of which the trainer was not told."""
    urls = [stack.policy_wire.url, wire.url]
    with stack.with_given(stack.overlay("replica", {"policy": {"engines": urls}})):
        yield


def _served_as(name: str) -> list[Change]:
    """What the engine calls ``name`` is called `policy` here."""

    async def before(asked: Asked) -> Asked | None:
        if not isinstance(asked.body, dict) or "model" not in asked.body:
            return None
        return replace(asked, body={**asked.body, "model": name})

    def told(asked: Any, body: Any) -> Any:
        return {**body, "data": [{**row, "id": "policy"} for row in body["data"]]}

    return [rewriting("/v1/models", told), Change(before=before)]


@contextmanager
def late_replica(stack: Deployment) -> Iterator[None]:
    """It has the weights of the first release, and says so."""
    changes = [_named(FIRST_RELEASE), *_served_as(engines.model(stack.prm_engine))]
    with Wire(stack.background, stack.prm_engine) as wire, wire.changed(*changes), beside(stack, wire):
        yield


@contextmanager
def unnamed_replica(stack: Deployment) -> Iterator[None]:
    """It has the current weights, and says that they are those before: the last update ended half-way."""
    changes = [_named(str(stack.version() - 1))]
    with Wire(stack.background, stack.policy_engine) as wire, wire.changed(*changes), beside(stack, wire):
        yield


@contextmanager
def base_weights(stack: Deployment, version: str) -> Iterator[None]:
    """The engine has the model's first weights, and the trainer does not get at it."""
    current = stack.version()
    closed = refusing(RELOAD, 503, "the engine is starting")
    with stack.policy_wire.changed(closed):
        engines.load(stack.policy_engine, stack.model_dir, version=version)
        try:
            yield
        finally:
            engines.load(stack.policy_engine, _released(stack), version=str(current))
    stack.wait_for("the release", stack.settled, 120.0)


def _released(stack: Deployment) -> Path:
    return (stack.state_dir / "weights" / "current").resolve()


@contextmanager
def restarted(stack: Deployment) -> Iterator[None]:
    """As after a restart from the model's directory: it knows no version."""
    with base_weights(stack, "default"):
        yield


@contextmanager
def reloaded(stack: Deployment) -> Iterator[None]:
    """Somebody loaded the first weights; the version's name stayed."""
    with base_weights(stack, str(stack.version())):
        yield


@contextmanager
def kept_cache(stack: Deployment) -> Iterator[None]:
    """Recent prompts were computed with other weights, and the cache was not flushed after the right ones came."""
    stack.train(1, LONG_WINDED)
    version = str(stack.version())
    engines.load(stack.policy_engine, stack.model_dir, version=version)
    engines.ask(stack.policy_engine, stack.recorded_prompts())
    engines.load(stack.policy_engine, _released(stack), version=version, flush=False)
    try:
        yield
    finally:
        engines.load(stack.policy_engine, _released(stack), version=version)


@contextmanager
def swallowed_flush(stack: Deployment) -> Iterator[None]:
    """Something between trainer and engine answers for all that clears a cache, a pause too, and passes nothing on."""
    changes = [
        answering("/pause", {"status": "paused"}),
        answering("/resume", {"status": "resumed"}),
        answering(FLUSH, {"success": True}),
    ]
    with stack.policy_wire.changed(*changes):
        stack.train(3, LONG_WINDED)
        yield
    engines.load(stack.policy_engine, _released(stack), version=str(stack.version()))


FAULTS = [
    Fault("weights never published", no_room, closed_routes, trains=True),
    Fault("one engine replica stale", late_replica, unnamed_replica),
    Fault("cache not flushed", kept_cache, swallowed_flush, trains=True),
    Fault("engine restarted with base weights", restarted, reloaded),
]
