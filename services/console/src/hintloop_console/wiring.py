"""Builds the console from its configuration and runs what works beside the page. Alone knows all parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.config import LoadedConfig
from hintloop_contract.errors import HintloopError
from hintloop_contract.opening import open_broker

from hintloop_console.access import Access
from hintloop_console.deps import ConsoleDeps
from hintloop_console.diagnosis import AlarmCollector, watch_alarms
from hintloop_console.doctor_runs import DoctorRuns
from hintloop_console.figures import LoopCollector
from hintloop_console.loop_view import LoopView
from hintloop_console.metrics import ConsoleCollector
from hintloop_console.reader import Reader
from hintloop_console.store import Store
from hintloop_console.telling import Teller
from hintloop_console.token_texts import TokenTexts

#: Arguments of a service that doctor takes, too.
_SHARED = ("--config", "--overlay", "--settings", "--set")


@asynccontextmanager
async def deps_of(
    loaded: LoadedConfig, arguments: Sequence[str] = (), broker: Broker | None = None
) -> AsyncIterator[ConsoleDeps]:
    """Build the console, and close it at the end. Contacts nothing.

    Args:
        loaded: the resolved configuration.
        arguments: of this process; doctor is started with those that it shares.
        broker: the streams; those of the configuration when ``None``.

    Raises:
        StoreError: the database cannot be used.
    """
    section = loaded.config.console
    store = await asyncio.to_thread(Store, section.database)
    streams = open_broker(loaded.config) if broker is None else broker
    teller = Teller(store, keep_turns=section.keep_turns, keep_bytes=section.keep_mb * 1_000_000)
    doctor = DoctorRuns(store, section.doctor_command, doctor_arguments(arguments), section.doctor_timeout_s)
    deps = ConsoleDeps(
        loaded=loaded,
        broker=streams,
        store=store,
        teller=teller,
        reader=Reader(streams, teller),
        view=LoopView(streams),
        access=Access(section, store),
        doctor=doctor,
        tokens=TokenTexts(loaded.config.tokenizer_dir),
    )
    deps.registry.register(ConsoleCollector(deps.reader, deps.view, deps.failures))
    deps.registry.register(LoopCollector(lambda: deps.view.look, loaded.config))
    deps.registry.register(AlarmCollector(lambda: deps.view.look.alarms))
    try:
        yield deps
    finally:
        await doctor.close()
        if broker is None:
            await streams.close()
        await asyncio.to_thread(store.close)


async def work(deps: ConsoleDeps, stop: asyncio.Event) -> None:
    """Read the history, look at the loop and raise alarms until ``stop``."""
    section = deps.loaded.config.console
    if not section.history:
        structlog.get_logger().warning("console.history is false: turns and steps are not noted, and none are shown")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(deps.reader.run(stop))
        tasks.create_task(deps.view.run(stop))
        tasks.create_task(_alarms(deps, stop))


async def _alarms(deps: ConsoleDeps, stop: asyncio.Event) -> None:
    """Raise alarms; a configuration that no cause can be told from leaves the page as it is, without them."""
    try:
        await watch_alarms(deps.broker, deps.loaded, stop, deps.failures)
    except HintloopError as error:
        structlog.get_logger().error("no alarms are raised", detail=str(error))


def doctor_arguments(arguments: Sequence[str]) -> list[str]:
    """Of a service's arguments those that doctor takes."""
    found: list[str] = []
    words = iter(arguments)
    for word in words:
        name, separator, _ = word.partition("=")
        if name in _SHARED:
            found += [word] if separator else [word, next(words, "")]
    return found
