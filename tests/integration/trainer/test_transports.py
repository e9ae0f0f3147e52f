"""Every kind of publishing into both real engines, proven by score: process groups and adapters, tied and tiny."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from hintloop_contract.broker import WeightsState
from hintloop_contract.config.lora import LoraSection
from hintloop_contract.config.schema import Config
from hintloop_contract.config.serving import ProxySection
from hintloop_contract.errors import DependencyError
from hintloop_contract.ids import adapter_name
from hintloop_contract.tensors import unpack
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_trainer.errors import PublishError
from hintloop_trainer.learner import Learner
from hintloop_trainer.losses.loading import load_loss
from hintloop_trainer.megatron.parallel import Layout
from hintloop_trainer.objective import objective_from
from hintloop_trainer.publish.probe import probe_ids
from hintloop_trainer.publish.release import Release
from hintloop_trainer.publish.transport import GroupTransport
from hintloop_trainer.publish.verification import Verifier, distance
from hintloop_trainer.wiring import engine_controls, make_publisher
from peft import LoraConfig, get_peft_model
from structlog.testing import capture_logs
from transformers import AutoModelForCausalLM

from tests.integration.conftest import RunningEngine, free_port, serve
from tests.unit.rollout_proxy.conftest import start_proxy

from .conftest import LORA_RANK

pytestmark = pytest.mark.engine

CLOSE = 1e-4


@pytest.fixture(params=["vllm", "sglang"])
def tied(request: pytest.FixtureRequest) -> RunningEngine:
    """Each engine with SmolLM2."""
    engine: RunningEngine = request.getfixturevalue(f"{request.param}_policy")
    return engine


@dataclass
class Site:
    """One real engine, its control, and a publisher that sends over a process group."""

    engine: RunningEngine
    config: Config
    learner: Learner
    broker: MemoryBroker
    control: Any
    publisher: Any
    transport: GroupTransport

    def release(self, version: int, seed: int | None) -> Release:
        """The learner's weights, each changed a little if a ``seed`` is given."""
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for parameter in self.learner.model.parameters():
                    parameter.mul_(1 + 0.02 * torch.randn(parameter.shape, generator=generator))
        directory = self.config.publishing.weights_dir.resolve() / str(version)
        self.learner.export(directory)
        ids = probe_ids(Path(self.config.tokenizer_dir), self.learner.arch.vocab_size)
        return Release(version, directory, ids, self.learner.score(ids))

    async def proves(self, release: Release) -> None:
        """The engine scores the probe as the trainer does under ``release``."""
        scores = await self.control.score(release.probe_ids, release.adapter)
        assert distance(scores, release.probe_scores) < CLOSE

    async def restore(self, like: Release, version: int) -> None:
        """Give the engine the weights it was started with."""
        await self.control.pause()
        await self.control.replace(self.engine.model_dir, version)
        await self.control.resume()
        await Verifier(CLOSE).verify(self.control, Release(version, like.directory, like.probe_ids, like.probe_scores))


@asynccontextmanager
async def site(engine: RunningEngine, layout: Layout, folder: Path) -> AsyncIterator[Site]:
    config = Config.model_validate(
        {
            "model": {"student_model_path": str(engine.model_dir), "dtype": "float32"},
            "rollout": {"engine": engine.kind},
            "policy": {"engines": [engine.base_url]},
            "publishing": {"weights_dir": folder, "transport": "process_group", "timeout_s": 30.0},
        }
    )
    learner = Learner(config, objective_from(config, load_loss(None, [])), layout)
    broker = MemoryBroker()
    async with aiohttp.ClientSession() as session:
        controls = engine_controls(config, session)
        publisher = make_publisher(config, broker, controls)
        transport = publisher._transport
        assert isinstance(transport, GroupTransport)
        yield Site(engine, config, learner, broker, controls[0], publisher, transport)
        await publisher.close()
    await broker.close()


def ways(logs: list[Any]) -> list[str]:
    """Which way each update of an engine went."""
    return [entry["by"] for entry in logs if entry["event"] == "engine updated"]


async def long_answer(engine: RunningEngine, model: str, begun: asyncio.Event) -> tuple[int, str | None]:
    """Tokens and finish reason; ``begun`` is set when the engine has made the first token."""
    body = {
        "model": model,
        "prompt": [10, 20, 30],
        "max_tokens": 160,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    tokens, finish_reason = 0, None
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{engine.base_url}/v1/completions", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line.removeprefix(b"data: "))
            assert "error" not in chunk, chunk
            begun.set()
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            for choice in chunk["choices"]:
                finish_reason = choice["finish_reason"] or finish_reason
    return tokens, finish_reason


async def under_way(engine: RunningEngine, model: str) -> asyncio.Task[tuple[int, str | None]]:
    """A long answer that the engine has begun; where this process stood still until one was whole, another one."""
    for _ in range(20):
        begun = asyncio.Event()
        answer = asyncio.create_task(long_answer(engine, model, begun))
        first = asyncio.create_task(begun.wait())
        await asyncio.wait([answer, first], return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        if not answer.done():
            return answer
        assert answer.result() == (160, "length")
    pytest.fail("no answer took a moment")


async def check_process_group(engine: RunningEngine, layout: Layout, folder: Path) -> None:
    async with site(engine, layout, folder) as made:
        base, changed = made.release(1, None), made.release(2, 11)
        with capture_logs() as logs:
            await made.publisher.publish(base)
            answer = await under_way(engine, engine.name)
            await made.publisher.publish(changed)
            assert await answer == (160, "length")
        assert ways(logs) == ["process_group", "process_group"]
        assert len([entry for entry in logs if entry["event"] == "process group open"]) == 1, "one group for both"
        await made.proves(changed)
        with pytest.raises(PublishError, match="probe"):
            await Verifier(CLOSE).verify(made.control, base)
        assert await made.broker.weights() == WeightsState(current=2, updating=None)
        await check_a_broken_transfer(made, changed)
        await made.restore(base, 99)


async def check_a_broken_transfer(made: Site, before: Release) -> None:
    """The trainer's end of the group is lost in the middle: the engine is given the whole version by disk."""
    third = made.release(3, 12)
    group = made.transport._groups[made.control.url]
    send, sent = group.send, 0

    async def cut(tensors: Any) -> None:
        nonlocal sent
        sent += 1
        await send(tensors[: len(tensors) // 2])
        raise RuntimeError("cut in the middle")

    group.send = cut  # type: ignore[method-assign]
    made.transport._open = refuse  # type: ignore[method-assign]
    with capture_logs() as logs:
        await made.publisher.publish(third)
    assert sent == 1
    assert ways(logs) == ["disk"]
    await made.proves(third)
    del made.transport._open
    # And the way over a group is open again.
    fourth = made.release(4, 13)
    with capture_logs() as logs:
        await made.publisher.publish(fourth)
    assert ways(logs) == ["process_group"]
    await made.proves(fourth)


async def refuse(control: Any) -> Any:
    raise PublishError(control.url, "process group: meeting", "refused by the test")


@pytest.mark.slow
async def test_a_process_group_brings_tied_weights(tied: RunningEngine, layout: Layout, tmp_path: Path) -> None:
    await check_process_group(tied, layout, tmp_path)


async def test_a_process_group_brings_a_tiny_models_weights(
    tiny: RunningEngine, layout: Layout, tmp_path: Path
) -> None:
    await check_process_group(tiny, layout, tmp_path)


async def check_agents_get_it(made: Site, release: Release) -> None:
    """An agent that asks for the model is answered under the adapter, and its turn is of that version."""
    await made.broker.ensure_groups()
    config = made.config.model_copy(update={"lora": LoraSection(enabled=True), "proxy": ProxySection(port=1)})
    config.proxy.spool_dir = made.config.publishing.weights_dir / "spool"
    async with start_proxy(config, made.broker) as proxy:
        question = {"messages": [{"role": "user", "content": "Where is the harbour?"}], "max_tokens": 12}
        status, data = await proxy.ask({"model": "policy", **question, "temperature": 1.0})
        assert status == 200, data
        assert json.loads(data)["model"] == "policy"
        (capture,) = await proxy.captures()
    assert (capture.problem, capture.version_oldest, capture.version_newest) == (None, release.version, release.version)
    assert capture.prompt_ids is not None and capture.response_ids is not None and capture.logprobs is not None
    prompt, response = unpack(capture.prompt_ids).tolist(), unpack(capture.response_ids).tolist()
    logprobs = unpack(capture.logprobs).tolist()
    under = (await made.control.score(prompt + response, release.adapter))[-len(response) :]
    without = (await made.control.score(prompt + response))[-len(response) :]
    assert distance(logprobs, under) < CLOSE
    assert distance(logprobs, without) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_an_engine_that_dies_in_the_middle_is_mended(
    kind: str, make_tiny: Callable[..., Path], layout: Layout, tmp_path: Path
) -> None:
    port, model_dir = free_port(), make_tiny()
    running = serve(kind, model_dir, tmp_path, 2048, port)
    engine = next(running)
    (tmp_path / "weights").mkdir()
    async with site(engine, layout, tmp_path / "weights") as made:
        first, second = made.release(1, 11), made.release(2, 12)
        await made.publisher.publish(first)
        group = made.transport._groups[made.control.url]
        send = group.send

        async def die(tensors: Any) -> None:
            await send(tensors[: len(tensors) // 2])
            os.killpg(engine.pid, signal.SIGKILL)
            await send(tensors[len(tensors) // 2 :])

        group.send = die  # type: ignore[method-assign]
        with pytest.raises(DependencyError):
            await made.publisher.publish(second)
        running.close()
        assert await made.broker.weights() == WeightsState(current=1, updating=2)
        running = serve(kind, model_dir, tmp_path, 2048, port)
        next(running)
        with pytest.raises(PublishError, match="probe"):
            await Verifier(CLOSE).verify(made.control, first)
        await made.publisher.reconcile()
        await made.proves(first)
        with capture_logs() as logs:
            await made.publisher.publish(second)
        assert ways(logs) == ["process_group"]
        await made.proves(second)
    running.close()


def make_adapter(model_dir: Path, directory: Path, seed: int, ids: list[int]) -> list[float]:
    """A random PEFT adapter; the scores of ``ids`` under it."""
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(base, LoraConfig(r=LORA_RANK, lora_alpha=8, target_modules=names, task_type="CAUSAL_LM"))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        logprobs_TV = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    model.save_pretrained(str(directory))
    return [logprobs_TV[position, token].item() for position, token in enumerate(ids[1:])]


async def test_adapters_are_swapped_while_answers_go_on(tiny: RunningEngine, layout: Layout, tmp_path: Path) -> None:
    async with site(tiny, layout, tmp_path) as made:
        ids = probe_ids(Path(made.config.tokenizer_dir), made.learner.arch.vocab_size)

        def adapter(version: int) -> Release:
            directory = tmp_path / str(version)
            return Release(version, directory, ids, make_adapter(tiny.model_dir, directory, version, ids))

        first, second = adapter(11), adapter(12)
        with capture_logs() as logs:
            await made.publisher.publish(first)
            name = adapter_name(11) if tiny.kind == "vllm" else f"{tiny.name}:{adapter_name(11)}"
            answer = await under_way(tiny, name)
            await made.publisher.publish(second)
            assert await answer == (160, "length")
        assert ways(logs) == ["adapter", "adapter"]
        await made.proves(first)
        await made.proves(second)
        assert distance(first.probe_scores, second.probe_scores) > 0.05
        assert await made.broker.get_status("engines") == {tiny.base_url: "12"}

        await check_agents_get_it(made, second)

        # An engine that lost the adapter (it restarted) is given it again.
        await made.control.unload_adapter(adapter_name(12))
        assert adapter_name(12) not in await made.control.adapters()
        await made.publisher.reconcile()
        assert adapter_name(12) in await made.control.adapters()
        await made.proves(second)

        # Only the newest few stay loaded.
        for version in (13, 14, 15, 16):
            await made.publisher.publish(adapter(version))
            await asyncio.gather(*made.publisher._tidying)
        assert sorted(await made.control.adapters()) == [adapter_name(version) for version in (13, 14, 15, 16)]
        await made.proves(Release(16, tmp_path / "16", ids, make_adapter(tiny.model_dir, tmp_path / "x", 16, ids)))
