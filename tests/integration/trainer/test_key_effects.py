"""What keys of the configuration change in the running trainer, where no other test shows it."""

from __future__ import annotations

import asyncio
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Sample
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_trainer import wiring
from hintloop_trainer.checkpoints import complete, read_state
from hintloop_trainer.errors import PublishError
from hintloop_trainer.publish.protocol import Publisher
from hintloop_trainer.publish.release import Release

from tests.integration.conftest import free_port
from tests.unit.trainer.fake_engines import FakeEngine

from .conftest import Bench
from .scripted_gate import collecting, drops, gate, holding, released, stop_when

MakeSample = Callable[..., Sample]
#: The time in which a trainer that waits shows that it goes on waiting.
WAITS_S = 3.0


def after(seconds: float, run: Callable[[], Any]) -> threading.Timer:
    timer = threading.Timer(seconds, run)
    timer.start()
    return timer


@pytest.mark.parametrize(("collected", "num_steps"), [(2, 1), (4, 0)])
def test_training_waits_for_a_whole_collection(
    bench: Bench, make_sample: MakeSample, collected: int, num_steps: int
) -> None:
    bench.feed([make_sample(turn) for turn in range(2)])
    config = bench.config(rollout={"rollout_batch_size": collected}, training={"max_steps": 1})
    # Without a whole collection it holds what there is, and goes on holding it.
    stop = None if num_steps else stop_when(bench, holding(bench, 2), after_s=WAITS_S)
    progress, _ = bench.train(config, stop=stop)
    assert progress.step == num_steps


@pytest.mark.parametrize("num_epochs", [1, 2])
def test_a_collection_is_passed_over_so_often(bench: Bench, make_sample: MakeSample, num_epochs: int) -> None:
    bench.feed([make_sample(turn) for turn in range(2)])
    stop = stop_when(bench, collecting(bench, num_epochs), after_s=WAITS_S)
    progress, _ = bench.train(bench.config(training={"num_epochs": num_epochs, "max_steps": 2}), stop=stop)
    assert progress.step == num_epochs


def test_the_newest_checkpoints_are_kept(bench: Bench, make_sample: MakeSample) -> None:
    bench.feed([make_sample(turn) for turn in range(8)])
    bench.train(bench.config(training={"max_steps": 4, "save_interval": 1, "keep_checkpoints": 3}))
    assert [read_state(folder).step for folder in complete(bench.folder / "checkpoints")] == [2, 3, 4]


def test_patience_is_the_number_of_releases_held_back(bench: Bench, make_sample: MakeSample) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    scripted = gate(bench, [True, False, True])
    config = bench.config(training={"max_steps": 9}, gate={"patience": 1})
    bench.train(config, gate=scripted, stop=stop_when(bench, released(bench, 3)))
    # The step after the first that was held back is a first step again.
    assert [line["step"] for line in bench.metrics()] == [1, 1]
    assert drops(bench) == {("train", "gate_rejected"): 2}


def test_engines_are_compared_at_the_configured_interval(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    intervals: list[float] = []
    stop = threading.Event()
    reconcile_forever = wiring.reconcile_forever

    async def reconciling(publisher: Publisher, interval_s: float, ending: asyncio.Event) -> None:
        intervals.append(interval_s)
        await reconcile_forever(publisher, interval_s, ending)

    async def look(self: Publisher) -> None:
        looks.append(len(looks))
        if len(looks) == 3:
            stop.set()

    monkeypatch.setattr(Publisher, "reconcile", look)
    monkeypatch.setattr(wiring, "reconcile_forever", reconciling)
    timer = after(180.0, stop.set)
    bench.train(bench.config(publishing={"reconcile_interval_s": 0.05}), stop=stop)
    timer.cancel()
    assert len(looks) >= 3 and intervals == [0.05]


def test_metrics_are_served_at_the_configured_address(bench: Bench) -> None:
    port, stop, seen = free_port(), threading.Event(), []

    def ask() -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not stop.wait(0.05):
            try:
                with opener.open(f"http://127.0.0.2:{port}/metrics", timeout=5) as answer:
                    seen.append(answer.read().decode())
                stop.set()
            except urllib.error.URLError:
                continue

    asking = threading.Thread(target=ask)
    asking.start()
    timer = after(180.0, stop.set)
    bench.train(bench.config(metrics={"host": "127.0.0.2", "port": port}), stop=stop)
    asking.join()
    timer.cancel()
    assert len(seen) == 1 and "hintloop_trainer" in seen[0]


async def published(folder: Path, versions: range, offset: float, **publishing: Any) -> list[str]:
    """Publish to a stand-in engine whose scores are ``offset`` above the trainer's; the versions kept."""
    engine, ids = FakeEngine(), [1, 2, 3]
    engine.scorer = lambda asked: [-1.0 + offset] * (len(asked) - 1)
    async with TestServer(engine.app()) as server, aiohttp.ClientSession() as session:
        sections: dict[str, Any] = {
            "model": {"dtype": "float32"},
            "rollout": {"engine": "vllm"},
            "policy": {"engines": [str(server.make_url("")).rstrip("/")]},
            "publishing": {"weights_dir": folder, **publishing},
        }
        config, broker = Config.model_validate(sections), MemoryBroker()
        publisher = wiring.make_publisher(config, broker, wiring.engine_controls(config, session))
        for version in versions:
            directory = folder / str(version)
            directory.mkdir()
            await publisher.publish(Release(version, directory, ids, [-1.0, -1.0]))
        await broker.close()
    return sorted(name for name in os.listdir(folder) if name.isdigit())


async def test_scores_may_differ_by_the_configured_tolerance(tmp_path: Path) -> None:
    assert await published(tmp_path, range(1, 2), 0.2, probe_tolerance=0.5) == ["1"]
    with pytest.raises(PublishError):
        await published(tmp_path, range(2, 3), 0.2, probe_tolerance=0.1)


async def test_the_newest_versions_are_kept(tmp_path: Path) -> None:
    assert await published(tmp_path, range(1, 6), 0.0, keep_versions=3) == ["3", "4", "5"]


async def test_a_call_to_an_engine_ends_after_its_time(tmp_path: Path) -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(300)
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", hang)
    async with TestServer(app, shutdown_timeout=0.1) as server, aiohttp.ClientSession() as session:
        sections: dict[str, Any] = {
            "rollout": {"engine": "vllm"},
            "policy": {"engines": [str(server.make_url("")).rstrip("/")]},
            "publishing": {"timeout_s": 0.2},
        }
        (control,) = wiring.engine_controls(Config.model_validate(sections), session)
        async with asyncio.timeout(60):
            with pytest.raises(PublishError, match=r"no answer within 0\.2 s"):
                await control.pause()
