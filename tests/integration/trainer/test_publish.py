"""Weights into real engines: what they score afterwards is what the trainer scores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from hintloop_contract.broker import WeightsState
from hintloop_contract.config.schema import Config
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_trainer.errors import PublishError
from hintloop_trainer.learner import Learner
from hintloop_trainer.losses.loading import load_loss
from hintloop_trainer.megatron.parallel import Layout
from hintloop_trainer.objective import objective_from
from hintloop_trainer.publish.probe import probe_ids
from hintloop_trainer.publish.release import Release
from hintloop_trainer.publish.transport import DiskTransport, GroupTransport
from hintloop_trainer.publish.verification import Verifier
from hintloop_trainer.wiring import engine_controls, make_publisher
from structlog.testing import capture_logs

pytestmark = pytest.mark.engine


def make_config(engine: Any, weights_dir: Path) -> Config:
    return Config.model_validate(
        {
            "model": {"student_model_path": str(engine.model_dir), "dtype": "float32"},
            "rollout": {"engine": engine.kind},
            "policy": {"engines": [engine.base_url]},
            "publishing": {"weights_dir": weights_dir, "transport": "process_group"},
        }
    )


@asynccontextmanager
async def publishing(config: Config) -> AsyncIterator[tuple[Any, Any, Any]]:
    """Broker, control of the one engine, publisher."""
    broker = MemoryBroker()
    async with aiohttp.ClientSession() as session:
        controls = engine_controls(config, session)
        publisher = make_publisher(config, broker, controls)
        yield broker, controls[0], publisher
        await publisher.close()
    await broker.close()


@torch.no_grad()
def perturb(learner: Learner) -> None:
    """Change every weight a little, the tied embedding included."""
    generator = torch.Generator().manual_seed(11)
    for parameter in learner.model.parameters():
        parameter.mul_(1 + 0.02 * torch.randn(parameter.shape, generator=generator))


def release(learner: Learner, config: Config, version: int) -> Release:
    directory = config.publishing.weights_dir.resolve() / str(version)
    learner.export(directory)
    ids = probe_ids(Path(config.tokenizer_dir), learner.arch.vocab_size)
    return Release(version, directory, ids, learner.score(ids))


async def stream_long_answer(url: str, model: str) -> tuple[int, str | None]:
    """Tokens and finish reason of a long streamed answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Count from one to fifty in words."}],
        "max_tokens": 96,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        found = await answer.json()
    return found["usage"]["completion_tokens"], found["choices"][0]["finish_reason"]


async def check_publishing(engine: Any, layout: Layout, folder: Path) -> None:
    config = make_config(engine, folder / "weights")
    learner = Learner(config, objective_from(config, load_loss(None, [])), layout)
    base = release(learner, config, 1)
    perturb(learner)
    changed = release(learner, config, 2)
    async with publishing(config) as (broker, control, publisher):
        by_group, by_disk = publisher._transport, DiskTransport()
        assert isinstance(by_group, GroupTransport)
        with capture_logs() as logs:
            await publisher.publish(base)
        assert [entry["by"] for entry in logs if entry["event"] == "engine updated"] == ["process_group"]
        assert await control.version() == 1
        with pytest.raises(PublishError, match="probe"):
            await Verifier(1e-3).verify(control, changed)

        # An answer that is being made goes on across the update, and is not cut.
        publisher._transport = by_disk
        answer = asyncio.create_task(stream_long_answer(engine.base_url, engine.name))
        await asyncio.sleep(1.0)
        await publisher.publish(changed)
        assert await Verifier(1e-3).verify(control, changed) < 1e-4
        assert await answer == (96, "length")
        assert await broker.weights() == WeightsState(current=2, updating=None)
        assert await broker.get_status("engines") == {engine.base_url: "2"}

        # An engine with other weights than the current ones is noticed and brought back.
        await control.pause()
        await control.replace(base.directory, base.version)
        await control.resume()
        await publisher.reconcile()
        assert await control.version() == 2
        await Verifier(1e-3).verify(control, changed)

        # The same across an update by process group. Whoever tests after this finds the base weights.
        publisher._transport = by_group
        answer = asyncio.create_task(stream_long_answer(engine.base_url, engine.name))
        await asyncio.sleep(1.0)
        restored = Release(3, base.directory, base.probe_ids, base.probe_scores)
        with capture_logs() as logs:
            await publisher.publish(restored)
        assert [entry["by"] for entry in logs if entry["event"] == "engine updated"] == ["process_group"]
        assert await Verifier(1e-3).verify(control, restored) < 1e-4
        assert await answer == (96, "length")


async def test_vllm_serves_what_was_published(vllm_policy: Any, layout: Layout, tmp_path: Path) -> None:
    await check_publishing(vllm_policy, layout, tmp_path)


async def test_sglang_serves_what_was_published(sglang_policy: Any, layout: Layout, tmp_path: Path) -> None:
    await check_publishing(sglang_policy, layout, tmp_path)


async def test_weights_that_do_not_fit_are_a_failed_publish(
    vllm_policy: Any, layout: Layout, tmp_path: Path, student: Callable[..., Path]
) -> None:
    config = make_config(vllm_policy, tmp_path / "weights")
    config.publishing.weights_dir.mkdir()
    misfit = Release(9, student(), [1, 2, 3], [-1.0, -1.0])
    async with publishing(config) as (broker, control, publisher):
        with pytest.raises(PublishError):
            await publisher.publish(misfit)
        # What the engine holds is unknown until a publish succeeds; it serves on.
        assert await broker.weights() == WeightsState(current=None, updating=9)
        assert await control.score([1, 2, 3])
