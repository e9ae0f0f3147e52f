"""The writer: versions at the end of an answer, a full spool, a clean exit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hintloop_contract.broker import WeightsState
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Capture, Sampling
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


async def test_capture_that_cannot_be_encoded_is_lost_alone(tmp_path: Path) -> None:
    broker = AwayBroker()
    await broker.ensure_groups()
    writer, metrics, flight = make_writer(broker, tmp_path)
    for turn_id, seed in (("a", 10**30), ("b", 1)):
        flight.begin(turn_id, 1)
        await writer.put(make_parcel(turn_id, sampling=Sampling(seed=seed)))
    writer.close()
    await writer.run()
    assert [entry.turn_id for entry in await broker.read(CAPTURES, "test", 10, None)] == ["b"]
    assert metrics.registry.get_sample_value("hintloop_proxy_lost_total", {"cause": "unencodable"}) == 1
    assert len(flight) == 0
    await broker.close()


async def test_capture_that_cannot_be_spooled_is_lost_alone(tmp_path: Path) -> None:
    broker = AwayBroker()
    await broker.ensure_groups()
    broker.away = True
    writer, metrics, flight = make_writer(broker, tmp_path)
    for turn_id, seed in (("a", 10**30), ("b", 1)):
        flight.begin(turn_id, 1)
        await writer.put(make_parcel(turn_id, sampling=Sampling(seed=seed)))
    writer.close()
    async with asyncio.timeout(10):
        await writer.run()
    assert metrics.registry.get_sample_value("hintloop_proxy_lost_total", {"cause": "unencodable"}) == 1
    assert metrics.registry.get_sample_value("hintloop_proxy_spooled_total") == 1
    await broker.close()


async def test_disk_that_is_away_too_loses_nothing_while_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = AwayBroker()
    await broker.ensure_groups()
    broker.away = True
    writer, metrics, _ = make_writer(broker, tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    def times_away() -> float:
        return metrics.registry.get_sample_value("hintloop_proxy_spool_away_total") or 0

    monkeypatch.setattr("hintloop_rollout_proxy.spool.os.fsync", full)
    running = asyncio.create_task(writer.run())
    await writer.put(make_parcel("a"))
    await writer.put(make_parcel("b"))
    async with asyncio.timeout(10):
        while times_away() < 2:
            await asyncio.sleep(0.01)
        broker.away = False
        found: list[Any] = []
        while len(found) < 2:
            found += await broker.read(CAPTURES, "test", 10, None)
            await asyncio.sleep(0.01)
    monkeypatch.undo()
    writer.close()
    await running
    assert sorted(entry.turn_id for entry in found) == ["a", "b"]
    assert metrics.registry.get_sample_value("hintloop_proxy_lost_total", {"cause": "spool_away"}) is None
    await broker.close()


async def test_spooled_record_that_cannot_be_decoded_is_set_aside(tmp_path: Path) -> None:
    broker = AwayBroker()
    await broker.ensure_groups()
    spool = Spool(tmp_path, 100_000)
    spool.open()
    spool.append([b"\xc1 no msgpack", msgspec.msgpack.encode(make_parcel("a")), b"torn"])
    spool.close()
    (segment,) = spool.segments()
    segment.write_bytes(segment.read_bytes()[:-1])
    writer, metrics, _ = make_writer(broker, tmp_path)
    await writer.put(make_parcel("b"))
    writer.close()
    await writer.run()
    assert [entry.turn_id for entry in await broker.read(CAPTURES, "test", 10, None)] == ["a", "b"]
    assert metrics.registry.get_sample_value("hintloop_proxy_spool_undecodable_total") == 1
    assert metrics.registry.get_sample_value("hintloop_proxy_spool_torn_total") == 1
    assert not segment.exists() and segment.with_suffix(".undecodable").exists()
    await broker.close()


async def test_what_a_failed_writer_held_is_left_on_disk(tmp_path: Path) -> None:
    broker = AwayBroker()
    await broker.ensure_groups()
    writer, _, _ = make_writer(broker, tmp_path)
    await writer.put(make_parcel("a"))
    await writer.put(make_parcel("b"))
    await writer.rescue()
    again, _, _ = make_writer(broker, tmp_path)
    await again.put(make_parcel("c"))
    again.close()
    await again.run()
    assert [entry.turn_id for entry in await broker.read(CAPTURES, "test", 10, None)] == ["a", "b", "c"]
    await broker.close()
