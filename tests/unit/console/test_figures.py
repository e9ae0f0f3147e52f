"""The loop as Prometheus metrics: what is known now, and nothing old while Redis is away."""

from __future__ import annotations

import msgspec
from hintloop_console.figures import LoopCollector
from hintloop_console.loop_view import Look, LoopView
from hintloop_contract.broker import WeightsState
from hintloop_contract.config.schema import Config
from hintloop_contract.control import Pause
from hintloop_contract.messages import Capture, Drop
from hintloop_contract.streams import CAPTURES
from hintloop_contract.testing.memory import MemoryBroker
from prometheus_client import CollectorRegistry

ENGINES = {"http://a:1": "7", "http://b:1": ""}


def capture(turn_id: str) -> Capture:
    return Capture(turn_id=turn_id, engine="vllm", engine_url="", request=b"{}", start_ms=0, end_ms=1)


async def test_a_loop_is_shown_as_it_stands_in_redis() -> None:
    broker = MemoryBroker()
    await broker.ensure_groups()
    for number in range(3):
        await broker.append(CAPTURES, capture(f"t{number}"))
    await broker.read(CAPTURES, "linker-1", 2, 1)
    await broker.drop(None, Drop(turn_id="d", stage="judge", reason="no_signal", detail=""))
    await broker.set_weights(WeightsState(current=7, updating=8))
    await broker.set_status("engines", ENGINES)

    view = LoopView(broker)
    await view.take()
    registry = CollectorRegistry()
    registry.register(LoopCollector(lambda: view.look, Config()))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("hintloop_redis_away") == 0
    assert value("hintloop_funnel_total", step="captured") == 3
    assert value("hintloop_funnel_total", step="trained") == 0
    assert value("hintloop_drops_total", stage="judge", reason="no_signal") == 1
    assert value("hintloop_stream_lag", stream="captures") == 3
    assert value("hintloop_stream_pending", stream="captures") == 2
    assert value("hintloop_stream_consumers", stream="captures") == 1
    assert value("hintloop_weights_current") == 7
    assert value("hintloop_weights_updating") == 1
    assert value("hintloop_engine_version", engine="http://a:1") == 7
    assert value("hintloop_engine_version", engine="http://b:1") is None
    assert value("hintloop_engine_unknown", engine="http://b:1") == 1
    assert value("hintloop_paused") == 0
    assert value("hintloop_limit", limit="admission") == Config().admission_limit
    assert value("hintloop_limit", limit="staleness_steps") == Config().training.max_staleness_steps
    await broker.close()


async def test_a_pause_shows() -> None:
    broker = MemoryBroker()
    await broker.client.set(broker.keys.paused, msgspec.msgpack.encode(Pause(reason="x", since_ms=1)))
    view = LoopView(broker)
    await view.take()
    registry = CollectorRegistry()
    registry.register(LoopCollector(lambda: view.look, Config()))
    assert registry.get_sample_value("hintloop_paused") == 1
    await broker.close()


async def test_nothing_old_is_told_while_redis_is_away() -> None:
    broker = MemoryBroker()
    view = LoopView(broker)
    there = await view.take()
    shown = []
    registry = CollectorRegistry()
    registry.register(LoopCollector(lambda: shown[-1], Config()))
    for look in (there, Look(there.loop, away="no answer"), Look()):
        shown.append(look)
        found = {metric.name for metric in registry.collect() if metric.samples}
        assert registry.get_sample_value("hintloop_redis_away") == (look is not there)
        assert ("hintloop_funnel" in found) == (look is there)
        assert look is there or found == {"hintloop_redis_away", "hintloop_limit"}
    await broker.close()
