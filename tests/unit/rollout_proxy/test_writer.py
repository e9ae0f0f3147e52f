"""The writer: versions at the end of an answer, a full spool, a clean exit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hintloop_contract.broker import Appended, WeightsState
from hintloop_contract.codec import PackedMessage
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Capture, Sampling
from hintloop_contract.streams import CAPTURES, DROPS, Stream
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy import writer as writer_module
from hintloop_rollout_proxy.flight import InFlight
from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.receipts import Receipts
from hintloop_rollout_proxy.spool import Spool
from hintloop_rollout_proxy.versions import VersionView
from hintloop_rollout_proxy.writer import CaptureWriter, Parcel


class AwayBroker(MemoryBroker):
    """A broker whose Redis can be away or slow; ``batches`` counts what each append took."""

    away = False
    slow_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    async def append_many(self, stream: Stream, batch: Sequence[PackedMessage], **more: Any) -> list[Appended] | None:
        if self.away:
            raise DependencyError("redis", "away")
        appended = await super().append_many(stream, batch, **more)
        self.batches.append(len(batch))
        await asyncio.sleep(self.slow_s)
        return appended


def make_writer(
    broker: Any, folder: Path, max_bytes: int = 1_000_000, max_captures: int = 0
) -> tuple[CaptureWriter, ProxyMetrics, InFlight]:
    metrics, flight = ProxyMetrics(), InFlight(broker)
    spool = Spool(folder, max_bytes)
    writer = CaptureWriter(broker, spool, VersionView(broker), flight, metrics, Receipts(), max_captures)
    writer.open()
    return writer, metrics, flight


def make_parcel(turn_id: str, **fields: Any) -> Parcel:
    values: dict[str, Any] = {"version_oldest": 2, "start_ms": 1, "end_ms": 2, "request": b"{}"}
    capture = Capture(turn_id=turn_id, engine="vllm", engine_url="u", **(values | fields))
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
    async with asyncio.timeout(60):
        while len(flight) > 2:
            await asyncio.sleep(0.01)
    assert metrics.registry.get_sample_value("hintloop_proxy_lost_total", {"cause": "spool_full"}) == 3
    broker.away = False
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
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
    assert metrics.registry.get_sample_value("hintloop_proxy_lost_total", {"cause": "spool_away"}) == 0
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


def value_of(metrics: ProxyMetrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"hintloop_proxy_{name}_total", labels) or 0


async def read_ids(broker: Any, count: int) -> list[str]:
    """Turn ids in the order of the stream, at least ``count``."""
    found: list[str] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += [entry.turn_id for entry in await broker.read(CAPTURES, "test", 1000, None)]
            await asyncio.sleep(0.01)
    return found


async def test_what_comes_together_goes_together(tmp_path: Path) -> None:
    broker = AwayBroker()
    await broker.ensure_groups()
    writer, _, _ = make_writer(broker, tmp_path)
    running = asyncio.create_task(writer.run())
    for number in range(150):
        await writer.put(make_parcel(str(number)))
    assert await read_ids(broker, 150) == [str(number) for number in range(150)]
    assert broker.batches == [64, 64, 22]
    writer.close()
    await running
    await broker.close()


async def test_a_batch_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "BATCH_BYTES", 3_000)
    broker = AwayBroker()
    await broker.ensure_groups()
    writer, _, _ = make_writer(broker, tmp_path)
    for number in range(4):
        await writer.put(make_parcel(str(number), request=b"x" * 4_000))
    writer.close()
    await writer.run()
    assert broker.batches == [1, 1, 1, 1]
    await broker.close()


async def test_slow_redis_sends_captures_to_disk_and_none_comes_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "CALL_S", 0.1)
    broker = AwayBroker()
    await broker.ensure_groups()
    broker.slow_s = 5.0
    writer, metrics, flight = make_writer(broker, tmp_path)
    running = asyncio.create_task(writer.run())
    for number in range(10):
        flight.begin(str(number), 1)
        await writer.put(make_parcel(str(number)))
        await asyncio.sleep(0.02)
    async with asyncio.timeout(60):
        while value_of(metrics, "spooled") < 10:
            await asyncio.sleep(0.01)
    broker.slow_s = 0.0
    async with asyncio.timeout(60):
        while len(flight):
            await asyncio.sleep(0.01)
    writer.close()
    await running
    assert await read_ids(broker, 10) == [str(number) for number in range(10)]
    assert (await broker.funnel()).steps == {"captured": 10}
    await broker.close()


async def test_a_long_replay_holds_nobody_up_and_keeps_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "QUEUE_LENGTH", 20)
    # A machine that stands still for a second loses none either: what is counted is room in the queue.
    monkeypatch.setattr(writer_module, "PUT_WAIT_S", 30.0)
    broker = AwayBroker()
    await broker.ensure_groups()
    broker.away = True
    writer, metrics, _ = make_writer(broker, tmp_path)
    running = asyncio.create_task(writer.run())
    for number in range(500):
        await writer.put(make_parcel(f"{number:04}"))
    broker.away, broker.slow_s = False, 0.02
    for number in range(500, 800):
        await writer.put(make_parcel(f"{number:04}"))
        await asyncio.sleep(0.001)
    found = await read_ids(broker, 800)
    assert found == [f"{number:04}" for number in range(800)]
    assert value_of(metrics, "lost", cause="queue_full") == 0
    writer.close()
    await running
    assert metrics.registry.get_sample_value("hintloop_proxy_spool_bytes") == 0
    await broker.close()


async def test_a_full_queue_holds_a_request_for_a_moment_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "QUEUE_LENGTH", 2)
    monkeypatch.setattr(writer_module, "PUT_WAIT_S", 0.05)
    broker = AwayBroker()
    writer, metrics, flight = make_writer(broker, tmp_path)
    for turn_id in "abc":
        flight.begin(turn_id, 1)
        await writer.put(make_parcel(turn_id))
    assert value_of(metrics, "lost", cause="queue_full") == 1
    assert len(flight) == 2
    await writer.rescue()
    await broker.close()


async def test_a_queue_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "QUEUE_BYTES", 20_000)
    monkeypatch.setattr(writer_module, "PUT_WAIT_S", 0.01)
    broker = AwayBroker()
    writer, metrics, _ = make_writer(broker, tmp_path)
    for number in range(5):
        await writer.put(make_parcel(str(number), request=b"x" * 10_000))
    assert value_of(metrics, "lost", cause="queue_full") == 3
    await writer.rescue()
    await broker.close()


async def test_past_the_bound_turns_are_dropped_and_counted(tmp_path: Path) -> None:
    broker = AwayBroker()
    await broker.ensure_groups()
    writer, metrics, flight = make_writer(broker, tmp_path, max_captures=3)
    for turn_id in "abcde":
        flight.begin(turn_id, 1)
        await writer.put(make_parcel(turn_id, tenant="t"))
    writer.close()
    await writer.run()
    assert await read_ids(broker, 3) == ["a", "b", "c"]
    funnel = await broker.funnel()
    assert (funnel.steps, funnel.drops) == ({"captured": 5}, {("capture", "backpressure"): 2})
    assert (await broker.counts(DROPS)).length == 2
    assert value_of(metrics, "problems", reason="backpressure") == 2
    assert len(flight) == 0
    await broker.close()


async def test_the_configured_bound_is_kept(proxy: Any, fake_engine: Any) -> None:
    fake_engine.replay("chat_stop")
    broker = AwayBroker()
    async with proxy(broker, proxy={"max_captures": 2}) as running:
        for number in range(3):
            status, _ = await running.ask({"model": "m", "messages": [{"role": "user", "content": str(number)}]})
            assert status == 200
        await read_ids(broker, 2)
        async with asyncio.timeout(60):
            while not (await broker.funnel()).drops:
                await asyncio.sleep(0.01)
        assert (await broker.funnel()).drops == {("capture", "backpressure"): 1}
    await broker.close()


async def test_weights_that_never_rest_send_captures_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is stamped in vain; that takes no longer than any other way of not reaching Redis."""
    monkeypatch.setattr(writer_module, "CALL_S", 0.3)
    broker = AwayBroker()
    await broker.ensure_groups()
    append, version = broker.append_many, [0]

    async def append_late(*words: Any, **more: Any) -> Any:
        version[0] += 1
        await asyncio.sleep(0.01)
        await broker.set_weights(WeightsState(version[0], None))
        return await append(*words, **more)

    monkeypatch.setattr(broker, "append_many", append_late)
    writer, metrics, _ = make_writer(broker, tmp_path)
    running = asyncio.create_task(writer.run())
    await writer.put(make_parcel("a"))
    async with asyncio.timeout(30):
        while metrics.registry.get_sample_value("hintloop_proxy_spooled_total") != 1:
            await asyncio.sleep(0.01)
    monkeypatch.setattr(broker, "append_many", append)
    async with asyncio.timeout(30):
        while not (entries := await broker.read(CAPTURES, "test", 10, None)):
            await asyncio.sleep(0.01)
    assert entries[0].message.version_newest == (await broker.weights()).current
    writer.close()
    await running
    await broker.close()
