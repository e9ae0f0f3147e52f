"""Samples as the trainer holds them: what waits again, and what is not trained a second time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from hintloop_contract.config.schema import Config
from hintloop_contract.streams import SAMPLES
from hintloop_contract.tensors import pack
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_trainer.admission import Admission
from hintloop_trainer.lineage import Lineage, Released
from hintloop_trainer.samples import Held, SampleSource

from .conftest import VOCAB, make_sample

LINEAGE = Lineage([Released(1, 0)])
CONFIG = Config.model_validate({"prm": {"teacher_source": "trainer"}})


def with_source(
    number: int, use: Callable[[SampleSource, MemoryBroker], Coroutine[Any, Any, None]], **fields: Any
) -> None:
    """``use`` a source that has read ``number`` samples."""

    async def work() -> None:
        broker = MemoryBroker()
        await broker.ensure_groups()
        for turn in range(number):
            await broker.append(SAMPLES, make_sample(turn, **fields))
        source = SampleSource(
            broker, "trainer-1", Admission(CONFIG, None), vocab_size=VOCAB, claim_idle_ms=60_000, capacity=number
        )
        await source.start()
        stop = asyncio.Event()
        serving = asyncio.create_task(source.serve(stop))
        try:
            await use(source, broker)
        finally:
            stop.set()
            await serving
            await broker.close()

    asyncio.run(work())


async def collected(source: SampleSource, count: int) -> list[Held]:
    found = await source.collect(count, LINEAGE, 10.0)
    assert found is not None
    return found


def test_what_waits_again_is_scored_again() -> None:
    async def use(source: SampleSource, broker: MemoryBroker) -> None:
        held = await collected(source, 2)
        scores = pack([-1.0] * 4, "float32")
        # By weights that are given up meanwhile.
        filled = [Held(msgspec.structs.replace(h.sample, teacher_logprobs=scores), h.entry) for h in held]
        await source.put_back(filled)
        again = await collected(source, 2)
        assert [h.sample for h in again] == [h.sample for h in held]
        assert all(h.sample.teacher_logprobs is None for h in again)

    with_source(2, use, teacher_logprobs=None, hinted_prompt_ids=pack([1, 2, 3], "int32"))


def test_what_weights_hold_that_are_gone_back_to_is_acknowledged_and_not_trained() -> None:
    async def use(source: SampleSource, broker: MemoryBroker) -> None:
        held = await collected(source, 4)
        await source.put_back(held)
        # They hold one that waits, and one that an earlier trainer acknowledged.
        trained = await source.forget(["turn-9999", "turn-0001"])
        assert [entry.turn_id for entry in trained] == ["turn-0001"]
        assert await source.in_weights() == ["turn-9999", "turn-0001"]
        assert [h.sample.turn_id for h in await collected(source, 3)] == ["turn-0000", "turn-0002", "turn-0003"]
        await source.finish(trained)
        assert (await broker.counts(SAMPLES)).length == 3
        assert await source.in_weights() == ["turn-9999", "turn-0001"]

    with_source(4, use)
