"""Where versions are adapters: what engines are asked for, and of which version an answer is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web
from hintloop_contract.broker import WeightsState
from hintloop_contract.ids import adapter_name, adapter_version
from hintloop_contract.testing.memory import MemoryBroker

QUESTION = {"model": "any-name", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
ADAPTERS = {"lora": {"enabled": True}}


@pytest.fixture
async def broker() -> Any:
    made = MemoryBroker()
    await made.set_weights(WeightsState(current=7))
    yield made
    await made.close()


def serve_adapters(engine: Any, *names: str) -> None:
    engine.adapters = list(names)


def asked_model(engine: Any) -> str:
    model: str = engine.seen[-1][1]["model"]
    return model


@pytest.mark.parametrize(("kind", "name"), [("vllm", "hintloop-7"), ("sglang", "engine-name:hintloop-7")])
async def test_the_version_in_force_is_asked_for(
    kind: str, name: str, fake_engine: Any, proxy: Any, broker: Any
) -> None:
    fake_engine.kind = kind
    fake_engine.replay("chat_stop")
    serve_adapters(fake_engine, "hintloop-6", "hintloop-7", "other")
    async with proxy(broker, **ADAPTERS) as running:
        status, data = await running.ask(QUESTION)
        (capture,) = await running.captures()
    assert status == 200 and json.loads(data)["model"] == "policy"
    assert asked_model(fake_engine) == name
    assert capture.problem is None
    assert (capture.version_oldest, capture.version_newest) == (7, 7)


async def test_an_answer_is_of_the_adapter_it_began_with(fake_engine: Any, proxy: Any, broker: Any) -> None:
    serve_adapters(fake_engine, "hintloop-7", "hintloop-8")
    fake_engine.replay("chat_stop")
    replay = fake_engine.reply

    async def publish_meanwhile(request: web.Request) -> web.StreamResponse:
        await broker.set_weights(WeightsState(current=8))
        return await replay(request)

    fake_engine.reply = publish_meanwhile
    async with proxy(broker, **ADAPTERS) as running:
        await running.ask(QUESTION)
        (capture,) = await running.captures()
    assert asked_model(fake_engine) == "hintloop-7"
    assert (capture.version_oldest, capture.version_newest) == (7, 7)


async def test_an_engine_without_the_adapter_answers_untrained(fake_engine: Any, proxy: Any, broker: Any) -> None:
    serve_adapters(fake_engine, "hintloop-6")
    fake_engine.replay("chat_stop")
    async with proxy(broker, **ADAPTERS) as running:
        status, _ = await running.ask(QUESTION)
        (capture,) = await running.captures()
        assert status == 200
        assert asked_model(fake_engine) == "engine-name"
        assert capture.problem == "not_trainable" and "no adapter of version 7" in capture.problem_detail


async def test_an_adapter_that_has_just_come_is_found_at_once(fake_engine: Any, proxy: Any, broker: Any) -> None:
    serve_adapters(fake_engine, "hintloop-7")
    fake_engine.replay("chat_stop")
    async with proxy(broker, **ADAPTERS) as running:
        await running.ask(QUESTION)
        serve_adapters_now(fake_engine, running, "hintloop-7", "hintloop-8")
        await broker.set_weights(WeightsState(current=8))
        while running.deps.versions.oldest != 8:
            await running.deps.versions.read()
        await running.ask(QUESTION)
        first, second = await running.captures(2)
    assert [first.version_oldest, second.version_oldest] == [7, 8]
    assert asked_model(fake_engine) == "hintloop-8"


def serve_adapters_now(engine: Any, running: Any, *names: str) -> None:
    serve_adapters(engine, *names)
    # What the proxy knows is from before.
    (known,) = running.deps.pool.engines
    known.adapters = frozenset(names[:1])


async def test_without_adapters_nothing_is_asked_for(fake_engine: Any, proxy: Any, broker: Any) -> None:
    serve_adapters(fake_engine, "hintloop-7")
    fake_engine.replay("chat_stop")
    async with proxy(broker) as running:
        await running.ask(QUESTION)
        (capture,) = await running.captures()
    assert asked_model(fake_engine) == "engine-name"
    assert capture.problem is None


async def test_generate_names_the_adapter_in_a_member(fake_engine: Any, proxy: Any, broker: Any) -> None:
    fake_engine.kind = "sglang"
    serve_adapters(fake_engine, "hintloop-7")
    fake_engine.replay("generate")
    async with proxy(broker, **ADAPTERS) as running:
        await running.post("/generate", {"text": "Once upon a time"})
    assert fake_engine.seen[-1][1]["lora_path"] == "hintloop-7"


async def test_agents_are_not_shown_versions_as_models(fake_engine: Any, proxy: Any, broker: Any) -> None:
    serve_adapters(fake_engine, "hintloop-7", "somebodys-own")
    async with proxy(broker, **ADAPTERS) as running, running.session.get(f"{running.url}/v1/models") as answer:
        listed = [model["id"] for model in (await answer.json())["data"]]
    assert listed == ["policy", "somebodys-own"]


def test_names_and_versions_belong_to_one_another() -> None:
    assert adapter_version(adapter_name(12)) == 12
    assert [adapter_version(name) for name in ("hintloop-", "hintloop-x", "12", "policy")] == [None] * 4
