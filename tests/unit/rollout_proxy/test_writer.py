"""The writer: versions at the end of an answer, a full spool, a clean exit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hintloop_contract.broker import WeightsState
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Capture
from hintloop_contract.streams import CAPTURES
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy.flight import InFlight
from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.spool import Spool
from hintloop_rollout_proxy.versions import VersionView
from hintloop_rollout_proxy.writer import CaptureWriter, Parcel


class AwayBroker(MemoryBroker):
    """A broker whose Redis can be away."""

    away = False

    async def weights(self) -> WeightsState:
        if self.away:
            raise DependencyError("redis", "away")
        return await super().weights()


def make_writer(broker: Any, folder: Path, max_bytes: int = 100_000) -> tuple[CaptureWriter, ProxyMetrics, InFlight]:
    metrics, flight = ProxyMetrics(), InFlight(broker)
    writer = CaptureWriter(broker, Spool(folder, max_bytes), VersionView(broker), flight, metrics)
    writer.open()
    return writer, metrics, flight


def make_parcel(turn_id: str, **fields: Any) -> Parcel:
    values: dict[str, Any] = {"version_oldest": 2, "start_ms": 1, "end_ms": 2}
    capture = Capture(turn_id=turn_id, engine="vllm", engine_url="u", request=b"{}", **(values | fields))
    return Parcel(capture, "trace")


@pytest.mark.parametrize(
    ("state", "newest"),
    [
        (WeightsState(2, None), 2),
        (WeightsState(3, None), 3),
        (WeightsState(2, 5), 5),
        (WeightsState(None, None), 2),
    ],
)
async def test_newest_version_is_read_at_the_end(state: WeightsState, newest: int, tmp_path: Path) -> None:
    broker = AwayBroker()
    await broker.ensure_groups()
    await broker.set_weights(state)
    writer, _, flight = make_writer(broker, tmp_path)
    flight.begin("a", 1)
    await writer.put(make_parcel("a"))
    writer.close()
    await writer.run()
    (entry,) = await broker.read(CAPTURES, "test", 10, None)
    assert (entry.message.version_oldest, entry.message.version_newest) == (2, newest)
    assert entry.traceparent == "trace"
    assert len(flight) == 0
    await broker.close()


async def test_spans_are_taken_as_they_are(tmp_path: Path) -> None:
    broker = AwayBroker()
    await broker.ensure_groups()
    await broker.set_weights(WeightsState(9, None))
    writer, _, _ = make_writer(broker, tmp_path)
    await writer.put(make_parcel("a", version_newest=2))
    writer.close()
    await writer.run()
    (entry,) = await broker.read(CAPTURES, "test", 10, None)
    assert entry.message.version_newest == 2
    await broker.close()


async def test_full_spool_loses_and_says_so(tmp_path: Path) -> None:
    broker = AwayBroker()
    await broker.ensure_groups()
    broker.away = True
    size = len(msgspec.msgpack.encode(make_parcel("0"))) + 8
    writer, metrics, flight = make_writer(broker, tmp_path, max_bytes=2 * size)
    running = asyncio.create_task(writer.run())
    for turn_id in "01234":
        flight.begin(turn_id, 1)
        await writer.put(make_parcel(turn_id))
    async with asyncio.timeout(10):
        while len(flight) > 2:
            await asyncio.sleep(0.01)
    assert metrics.registry.get_sample_value("hintloop_proxy_lost_total", {"cause": "spool_full"}) == 3
    broker.away = False
    async with asyncio.timeout(10):
        while len(flight):
            await asyncio.sleep(0.01)
    writer.close()
    await running
    entries = await broker.read(CAPTURES, "test", 10, None)
    assert [entry.turn_id for entry in entries] == ["0", "1"]
    assert [entry.message.version_newest for entry in entries] == [2, 2]
    assert metrics.registry.get_sample_value("hintloop_proxy_spool_bytes") == 0
    await broker.close()


async def test_exit_while_redis_is_away_leaves_everything_on_disk(tmp_path: Path) -> None:
    broker = AwayBroker()
    await broker.ensure_groups()
    broker.away = True
    writer, _, _ = make_writer(broker, tmp_path)
    for number in range(150):
        await writer.put(make_parcel(str(number)))
    writer.close()
    async with asyncio.timeout(10):
        await writer.run()
    broker.away = False
    again, _, _ = make_writer(broker, tmp_path)
    await again.put(make_parcel("last"))
    again.close()
    await again.run()
    entries = await broker.read(CAPTURES, "test", 1000, None)
    assert [entry.turn_id for entry in entries] == [*(str(number) for number in range(150)), "last"]
    await broker.close()
