"""Faults between trainer and engines: weights that do not arrive, or are not what an engine answers with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from . import engines
from .agent import Day
from .deployment import Deployment
from .fault import Fault
from .wire import Asked, Change, Wire, answering, refusing, rewriting

RELOAD = "/collective_rpc"
FLUSH = "/reset_prefix_cache"
#: Longer than a block of the cache, so that it is held.
REMEMBERED = "Tell me about rain, rivers and the sea, and about the people who live beside them."


@contextmanager
def step_that_is_not_published(stack: Deployment, *changes: Change) -> Iterator[None]:
    """A step is made while engines take no weights; they are published once that is lifted."""
    before = stack.step()
    with stack.policy_wire.changed(*changes):
        stack.talk(3, Day(turns=4))
        stack.wait_for("a step", lambda: stack.step() > before, 120.0)
        stack.wait_for("a failed release", lambda: stack.updating() or _failed(stack), 60.0)
        yield
    stack.wait_for("the release", lambda: not stack.updating() and not _failed(stack), 120.0)


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
def replica(stack: Deployment, version: str) -> Iterator[None]:
    """A second engine with the first weights, of which the trainer was not told; it says that it has ``version``."""
    names = rewriting(
        "/v1/models", lambda asked, body: {**body, "data": [{**row, "id": "policy"} for row in body["data"]]}
    )
    served = engines.model(stack.prm_engine)
    with ExitStack() as entered:
        wire = entered.enter_context(Wire(stack.background, stack.prm_engine))
        entered.enter_context(wire.changed(_named(version), names, _served_as(served)))
        urls = [stack.policy_wire.url, wire.url]
        entered.enter_context(stack.with_given(stack.overlay("replica", {"policy": {"engines": urls}})))
        yield


def _served_as(name: str) -> Change:
    """Asks the engine for its own model, whatever it is called here."""

    async def before(asked: Asked) -> Asked | None:
        if not isinstance(asked.body, dict) or "model" not in asked.body:
            return None
        return replace(asked, body={**asked.body, "model": name})

    return Change(before=before)


@contextmanager
def late_replica(stack: Deployment) -> Iterator[None]:
    """It says itself that it has older weights."""
    with replica(stack, str(max(1, stack.version() - 1))):
        yield


@contextmanager
def mislabelled_replica(stack: Deployment) -> Iterator[None]:
    """It says that it has the current ones."""
    with replica(stack, str(stack.version())):
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
    stack.wait_for("the release", lambda: not stack.updating() and not _failed(stack), 120.0)


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
    version = str(stack.version())
    engines.load(stack.policy_engine, stack.model_dir, version=version)
    stack.talk(4, Day(turns=3))
    engines.load(stack.policy_engine, _released(stack), version=version, flush=False)
    try:
        yield
    finally:
        engines.load(stack.policy_engine, _released(stack), version=version)


@contextmanager
def swallowed_flush(stack: Deployment) -> Iterator[None]:
    """Something between trainer and engine answers for the flush, and never passes it on."""
    stack.talk(4, Day(turns=3))
    with stack.policy_wire.changed(answering(FLUSH, {"success": True})):
        stack.train(3)
        yield
    engines.load(stack.policy_engine, _released(stack), version=str(stack.version()))


FAULTS = [
    Fault("weights never published", no_room, closed_routes, trains=True),
    Fault("one engine replica stale", late_replica, mislabelled_replica),
    Fault("cache not flushed", kept_cache, swallowed_flush, trains=True),
    Fault("engine restarted with base weights", restarted, reloaded),
]
