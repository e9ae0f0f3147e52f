"""Puts the proxy together from a configuration and runs it. Owns construction, start and shutdown order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import AsyncIterator, Collection, Iterator
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn
from hintloop_contract.api_keys import KeyRing
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError, DependencyError
from hintloop_contract.opening import open_broker
from hintloop_contract.redis_broker import RedisBroker
from hintloop_contract.tracing import open_tracing

from hintloop_rollout_proxy.apis.response_store import ResponseStore, Unshared
from hintloop_rollout_proxy.apis.table import translated_apis
from hintloop_rollout_proxy.app import make_app
from hintloop_rollout_proxy.background import Background
from hintloop_rollout_proxy.clock import RedisClock
from hintloop_rollout_proxy.deps import ProxyDeps
from hintloop_rollout_proxy.engines import dialect_of
from hintloop_rollout_proxy.errors import BackgroundError, SpoolError
from hintloop_rollout_proxy.flight import InFlight
from hintloop_rollout_proxy.gate import Gate
from hintloop_rollout_proxy.intake import Intake
from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.one_write import JoiningProtocol
from hintloop_rollout_proxy.readiness import EngineWatch
from hintloop_rollout_proxy.receipts import Receipts
from hintloop_rollout_proxy.scrubbing import ScrubbingStage, make_scrubber
from hintloop_rollout_proxy.spool import Spool
from hintloop_rollout_proxy.upstream import EnginePool, make_session
from hintloop_rollout_proxy.versions import VersionView
from hintloop_rollout_proxy.writer import CaptureWriter

if TYPE_CHECKING:
    from hintloop_rollout_proxy.linker_task import LinkerTask

#: Seconds that answers in flight get to end at shutdown.
GRACE_S = 10
#: Objects more than before at which the youngest are collected; a request makes some hundreds.
GC_THRESHOLD = 10_000

log = structlog.get_logger()


@contextlib.asynccontextmanager
async def make_deps(config: Config, broker: Any) -> AsyncIterator[ProxyDeps]:
    """Dependencies over ``broker``, with the client session open; no task runs yet. Raises ``SpoolError``."""
    session = make_session()
    pool = EnginePool(config.engine_urls, session)
    try:
        metrics, dialect = ProxyMetrics(), dialect_of(config.rollout.engine)
        versions, flight, receipts = VersionView(broker), InFlight(broker), Receipts()
        gate = Gate(KeyRing(config.proxy.api_keys))
        engine_key = config.policy.api_key.get_secret_value()
        spool = Spool(config.proxy.spool_dir, config.proxy.spool_max_bytes)
        metrics.spool_max_bytes.set(config.proxy.spool_max_bytes)
        writer = CaptureWriter(broker, spool, versions, flight, metrics, receipts, config.proxy.max_captures)
        writer.open()
        tracing = open_tracing("rollout-proxy", config.tracing)
        scrubber = make_scrubber(config.proxy)
        scrubbing = None if scrubber is None else ScrubbingStage(scrubber, writer, flight, metrics, receipts)
        # What an agent may refer to has to be exact, so it cannot be scrubbed: then it is not stored.
        shared = broker if scrubber is None else Unshared()
        yield ProxyDeps(
            config=config,
            gate=gate,
            dialect=dialect,
            pool=pool,
            watch=EngineWatch(pool, dialect, engine_key),
            clock=RedisClock(broker),
            versions=versions,
            flight=flight,
            intake=Intake(scrubbing or writer, receipts, metrics),
            scrubbing=scrubbing,
            writer=writer,
            metrics=metrics,
            engine_key=engine_key if gate.checks_keys else None,
            background=Background(),
            tracing=tracing,
            translated=translated_apis(ResponseStore(shared, ttl_s=config.rollout.session_timeout_sec)),
        )
    finally:
        pool.close()
        await session.close()


@contextlib.asynccontextmanager
async def running(deps: ProxyDeps) -> AsyncIterator[None]:
    """The background tasks; at the end the writer drains, to Redis or to disk."""
    with contextlib.suppress(DependencyError):
        await deps.clock.measure()
        await deps.versions.read()
    start = deps.background.start
    tasks = [
        start("clock", deps.clock.run()),
        start("versions", deps.versions.run()),
        start("flight", deps.flight.run()),
        start("engine watch", deps.watch.run()),
    ]
    if deps.scrubbing is not None:
        tasks.append(start("scrubbing", deps.scrubbing.run()))
    writing = start("writer", deps.writer.run())
    try:
        yield
    finally:
        await _drain(deps)
        deps.writer.close()
        await asyncio.wait({writing})
        if writing.cancelled() or writing.exception() is not None:
            await deps.writer.rescue()
        with contextlib.suppress(DependencyError):
            await deps.flight.register()
        if deps.tracing is not None:
            await asyncio.to_thread(deps.tracing.close)
        await _end(tasks)


async def _drain(deps: ProxyDeps) -> None:
    """Let what waits to be scrubbed go on to the writer; where scrubbing failed it is lost, never stored as it was."""
    if deps.scrubbing is None:
        return
    draining = asyncio.create_task(deps.scrubbing.drain())
    scrubbing = [task for task in deps.background.tasks if task.get_name() == "scrubbing"]
    await asyncio.wait({draining, *scrubbing}, return_when=asyncio.FIRST_COMPLETED)
    draining.cancel()


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel until all have ended: a client library may swallow a cancellation that meets its own timeout."""
    open_tasks = set(tasks)
    while open_tasks:
        for task in open_tasks:
            task.cancel()
        _, open_tasks = await asyncio.wait(open_tasks, timeout=0.5)


class ProxyServer(uvicorn.Server):
    """uvicorn without signal handlers of its own: shutdown is decided in :func:`serve`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class _CutAnswers(logging.Filter):
    """Leaving an answer unfinished is how a broken engine stream is passed on; the proxy logs it itself."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "without completing response" not in record.getMessage()


def make_server(deps: ProxyDeps) -> ProxyServer:
    """The HTTP server over the app."""
    logging.getLogger("uvicorn.error").addFilter(_CutAnswers())
    proxy = deps.config.proxy
    return ProxyServer(
        uvicorn.Config(
            make_app(deps),
            host=proxy.host,
            port=proxy.port,
            loop="none",
            http=JoiningProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=GRACE_S,
        )
    )


async def serve(config: Config, *, with_linker: bool) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ConfigError: the spool cannot be used, or Redis could lose messages (``redis.check_durability``).
        BackgroundError: the linker, the writer or another background task ended by itself.
    """
    broker = open_broker(config)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await check_redis(config, broker)
        async with make_deps(config, broker) as deps, running(deps):
            linker = _make_linker(broker, config, deps) if with_linker else None
            await _serve_until(stop, deps, linker)
    except SpoolError as error:
        raise ConfigError(str(error)) from error
    finally:
        await broker.close()


def _make_linker(broker: RedisBroker, config: Config, deps: ProxyDeps) -> LinkerTask:
    # A process that only captures does without its memory.
    from hintloop_rollout_proxy.linker_task import LinkerTask

    return LinkerTask(broker, config, deps.metrics)


async def _serve_until(stop: asyncio.Event, deps: ProxyDeps, linker: LinkerTask | None) -> None:
    """Serve until ``stop``; raises ``BackgroundError`` when a background task ended before."""
    server = make_server(deps)
    # What is here by now stays, so it is looked at no more; requests leave little that needs collecting.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    serving = asyncio.create_task(server.serve())
    linking = {deps.background.start("linker", linker.run(stop))} if linker is not None else set()
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping, *deps.background.tasks}, return_when=asyncio.FIRST_COMPLETED)
    # The linker ends by itself once it is told to, at times before this is looked at.
    usual = ("running", "ended") if stop.is_set() else ("running",)
    ended = [f"{name} {state}" for name, state in deps.background.describe().items() if state not in usual]
    stop.set()
    server.should_exit = True
    await asyncio.wait({serving, stopping, *linking})
    await serving
    if ended:
        raise BackgroundError(f"the proxy ends because a background task did: {'; '.join(ended)}")


async def check_redis(config: Config, broker: RedisBroker) -> None:
    """Refuse a Redis that could lose messages. One that is away is no reason not to serve: captures are spooled."""
    try:
        await broker.ensure_groups()
        problems = await broker.durability_problems() if config.redis.check_durability else []
    except DependencyError as error:
        log.warning("redis is away; captures wait on disk", error=str(error))
        return
    if problems:
        raise ConfigError(
            "redis.url points to a Redis that could lose messages: "
            + "; ".join(problems)
            + "; or set redis.check_durability = false to accept that"
        )
