"""Weights in a process group to a fake engine whose worker really joins: what arrives, and every way it goes wrong."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from aiohttp.test_utils import TestServer
from hintloop_contract.broker import WeightsState
from hintloop_contract.errors import DependencyError
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_trainer.errors import PublishError
from hintloop_trainer.publish.engines import EngineHttp
from hintloop_trainer.publish.group import WeightGroup, address_facing
from hintloop_trainer.publish.protocol import Publisher
from hintloop_trainer.publish.release import Release
from hintloop_trainer.publish.sglang import SglangControl
from hintloop_trainer.publish.tensors import portions
from hintloop_trainer.publish.transport import GroupTransport
from hintloop_trainer.publish.vllm import VllmControl
from safetensors.torch import save_file
from structlog.testing import capture_logs

from .fake_group import FakeGroupEngine, join

CONTROLS: dict[str, Any] = {"vllm": VllmControl, "sglang": SglangControl}
RECEIVE = ("/update_weights", "/update_weights_from_distributed")
MEET = ("/init_weight_transfer_engine", "/init_weights_update_group")
#: For what is to succeed on a machine however busy, and for what is to be given up.
PATIENT_S, HASTY_S = 60.0, 2.5


class Site:
    """One fake engine of a dialect and a publisher that sends to it over gloo, 40 bytes at once."""

    def __init__(self, dialect: str, folder: Path, session: aiohttp.ClientSession, url: str) -> None:
        self.folder = folder
        self.broker = MemoryBroker()
        self.http = EngineHttp(session, url, "", PATIENT_S)
        self.control = CONTROLS[dialect](self.http)
        self.transport = GroupTransport(torch.device("cpu"), PATIENT_S, portion_bytes=40)
        self.publisher = Publisher(
            self.broker,
            [self.control],
            weights_dir=folder,
            tolerance=1e-3,
            keep_versions=2,
            transport=self.transport,
        )

    def wait_at_most(self, timeout_s: float) -> None:
        self.transport._timeout_s = timeout_s
        self.http._timeout = aiohttp.ClientTimeout(total=timeout_s)

    def release(self, version: int) -> Release:
        directory = self.folder / str(version)
        directory.mkdir()
        save_file(self.tensors(version), str(directory / "model.safetensors"))
        return Release(version, directory, [1, 2, 3], [-1.0, -1.0])

    def tensors(self, version: int) -> dict[str, torch.Tensor]:
        return {
            "model.layers.2.a": torch.full((2, 3), float(version)),
            "model.layers.10.a": torch.full((5,), version + 0.5, dtype=torch.bfloat16),
            "lm_head.weight": torch.arange(20, dtype=torch.float32) + version,
        }

    async def publish(self, version: int) -> list[str]:
        """Publish; which way each engine was updated."""
        with capture_logs() as logs:
            await self.publisher.publish(self.release(version))
        self.logs = logs
        return [entry["by"] for entry in logs if entry["event"] == "engine updated"]

    def failures(self) -> list[str]:
        return [entry["detail"] for entry in self.logs if entry["event"] == "process group failed"]


@pytest.fixture
def engine() -> FakeGroupEngine:
    return FakeGroupEngine()


@pytest.fixture(params=sorted(CONTROLS))
async def site(request: pytest.FixtureRequest, engine: FakeGroupEngine, tmp_path: Path) -> AsyncIterator[Site]:
    async with TestServer(engine.app()) as server, aiohttp.ClientSession() as session:
        made = Site(request.param, tmp_path, session, str(server.make_url("")).rstrip("/"))
        yield made
        engine.released.set()
        engine.group = None
        await made.publisher.close()
        await made.broker.close()


def check_received(site: Site, engine: FakeGroupEngine, version: int) -> None:
    expected = site.tensors(version)
    assert engine.received.keys() == expected.keys()
    for name, tensor in expected.items():
        assert engine.received[name].dtype == tensor.dtype and torch.equal(engine.received[name], tensor)


async def test_every_tensor_arrives_and_the_group_is_kept(site: Site, engine: FakeGroupEngine) -> None:
    for version in (1, 2, 3):
        assert await site.publish(version) == ["process_group"]
        check_received(site, engine, version)
        assert engine.version == str(version)
        assert not engine.paused and not engine.session
    assert engine.joined == 1
    assert sum(path in RECEIVE for path in engine.calls) == 3 * 2, "two portions a release"
    assert await site.broker.weights() == WeightsState(current=3, updating=None)


async def test_an_engine_that_restarted_is_met_again(site: Site, engine: FakeGroupEngine) -> None:
    await site.publish(1)
    engine.restart()
    assert await site.publish(2) == ["process_group"]
    check_received(site, engine, 2)
    assert engine.joined == 2


@pytest.mark.parametrize("steps", [MEET, RECEIVE])
async def test_an_engine_that_hangs_is_given_the_disk_in_time(
    site: Site, engine: FakeGroupEngine, steps: tuple[str, ...]
) -> None:
    engine.hang.update(steps)
    site.wait_at_most(HASTY_S)
    assert await site.publish(1) == ["disk"]
    assert engine.version == "1" and engine.directory == str(site.folder / "1")
    (failure,) = site.failures()
    assert failure.startswith(f"{site.control.url}: ")
    assert re.search(rf"(not done|no answer) within {HASTY_S} s", failure)
    site.wait_at_most(PATIENT_S)
    engine.hang.clear()
    engine.released.set()
    assert await site.publish(2) == ["process_group"]
    check_received(site, engine, 2)


@pytest.mark.parametrize("steps", [MEET, RECEIVE, ("/finish_weight_update", "/end_weight_update")])
async def test_an_engine_that_refuses_is_given_the_disk(
    site: Site, engine: FakeGroupEngine, steps: tuple[str, ...]
) -> None:
    engine.refuse.update(steps)
    assert await site.publish(1) == ["disk"]
    (failure,) = site.failures()
    assert "refused" in failure
    assert engine.version == "1" and not engine.paused


async def test_a_session_left_open_is_closed_first(site: Site, engine: FakeGroupEngine) -> None:
    engine.session = True
    assert await site.publish(1) == ["process_group"]
    check_received(site, engine, 1)


async def test_an_engine_that_is_lost_in_the_middle_is_left_to_the_reconciler(
    site: Site, engine: FakeGroupEngine
) -> None:
    await site.publish(1)
    engine.cut.update(RECEIVE)
    with pytest.raises(DependencyError):
        await site.publish(2)
    assert not site.transport._groups
    engine.cut.clear()
    engine.restart()
    engine.session = False
    assert await site.publish(3) == ["process_group"]
    engine.restart()
    await site.publisher.reconcile()
    assert (engine.version, engine.directory) == ("3", str(site.folder / "3")), "by disk"


async def test_a_publish_that_is_cancelled_leaves_no_group(site: Site, engine: FakeGroupEngine) -> None:
    # What was being sent when it was given up keeps the group so long.
    site.wait_at_most(5.0)
    engine.hang.update(RECEIVE)
    task = asyncio.create_task(site.publish(1))
    async with asyncio.timeout(60):
        while not any(path in RECEIVE for path in engine.calls):
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not site.transport._groups


def test_portions_are_in_the_order_of_the_layers_and_bounded(tmp_path: Path) -> None:
    names = [f"model.layers.{number}.w" for number in range(12)]
    save_file({name: torch.zeros(10) for name in names}, str(tmp_path / "a.safetensors"))
    save_file({"model.norm.weight": torch.zeros(100)}, str(tmp_path / "b.safetensors"))
    found = list(portions(tmp_path, 100))
    assert [name for portion in found for name in portion.names] == [*names, "model.norm.weight"]
    assert [len(portion.names) for portion in found] == [2] * 6 + [1], "one tensor above the bound goes alone"
    assert [portion.last for portion in found] == [False] * 6 + [True]


def test_an_export_without_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="safetensors"):
        list(portions(tmp_path, 100))


async def test_a_release_that_cannot_be_read_is_a_failed_publish(site: Site, engine: FakeGroupEngine) -> None:
    empty = site.folder / "9"
    empty.mkdir()
    with pytest.raises(PublishError, match="reading"):
        await site.transport._transfer(site.control, Release(9, empty, [1, 2], [-1.0]))


def test_the_trainer_is_met_at_the_address_that_faces_the_engine() -> None:
    assert address_facing("http://127.0.0.1:8000") == "127.0.0.1"
    assert address_facing("http://localhost") in ("127.0.0.1", "::1")


async def test_a_member_that_takes_nothing_does_not_hold_the_trainer() -> None:
    invitation = WeightGroup.invite("http://127.0.0.1:1", 1, torch.device("cpu"), 2.0)
    meeting = invitation.meeting
    opening = asyncio.to_thread(invitation.open)
    joining = asyncio.to_thread(join, meeting.address, meeting.port, meeting.world_size, meeting.name)
    group, member = await asyncio.gather(opening, joining)
    async with asyncio.timeout(60):
        with pytest.raises(TimeoutError, match=r"^$"):
            # More than lies in the sockets' buffers.
            await group.send([torch.zeros(2**24)])
        await asyncio.to_thread(group.close)
    del member


async def test_nobody_comes_to_a_meeting() -> None:
    invitation = WeightGroup.invite("http://127.0.0.1:1", 1, torch.device("cpu"), 0.3)
    with pytest.raises(RuntimeError):
        await asyncio.to_thread(invitation.open)
