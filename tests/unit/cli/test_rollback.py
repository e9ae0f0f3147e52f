"""`hintloop rollback` and `resume`: what becomes of a request, with and without a trainer that takes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from hintloop.commands import app
from hintloop.errors import CommandError
from hintloop.rollback import NoAnswerError, ask_trainer, restorable_versions
from hintloop_contract.broker import WeightsState
from hintloop_contract.control import Command, ControlOutcome, ControlRequest, ControlState
from hintloop_contract.testing.memory import MemoryBroker
from typer.testing import CliRunner

ROLLBACK = ControlRequest(command=Command.ROLLBACK, version=7)


def run(work: Callable[[MemoryBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        broker = MemoryBroker()
        try:
            await work(broker)
        finally:
            await broker.close()

    asyncio.run(main())


async def take(broker: MemoryBroker, outcome: ControlOutcome | None) -> None:
    """Be the trainer: take the request, and end it if there is an outcome."""
    while (found := await broker.next_control()) is None:
        await asyncio.sleep(0.01)
    assert found[1] == ROLLBACK
    await broker.accept_control(found[0])
    if outcome is not None:
        await broker.settle_control(found[0], outcome, pause=None)


def test_what_the_trainer_did_is_told() -> None:
    async def work(broker: MemoryBroker) -> None:
        done = ControlOutcome(state=ControlState.DONE, detail="as version 9", version=9)
        trainer = asyncio.create_task(take(broker, done))
        assert await ask_trainer(broker, ROLLBACK, timeout_s=60) == done
        await trainer

    run(work)


def test_a_refusal_is_an_error_with_its_reason() -> None:
    async def work(broker: MemoryBroker) -> None:
        trainer = asyncio.create_task(take(broker, ControlOutcome(state=ControlState.REFUSED, detail="not kept")))
        with pytest.raises(CommandError, match="the trainer refused: not kept"):
            await ask_trainer(broker, ROLLBACK, timeout_s=60)
        await trainer

    run(work)


def test_without_a_trainer_the_request_is_withdrawn() -> None:
    async def work(broker: MemoryBroker) -> None:
        with pytest.raises(NoAnswerError, match="no trainer took the request within 0 s .none ever ran.*withdrawn"):
            await ask_trainer(broker, ROLLBACK, timeout_s=0.3)
        assert await broker.next_control() is None
        await broker.set_status("trainer", {"phase": "stopped"})
        with pytest.raises(NoAnswerError, match="its last word was 'stopped'"):
            await ask_trainer(broker, ROLLBACK, timeout_s=0.3)

    run(work)


def test_what_was_begun_stays() -> None:
    async def work(broker: MemoryBroker) -> None:
        trainer = asyncio.create_task(take(broker, None))
        with pytest.raises(NoAnswerError, match="has begun and is not done"):
            await ask_trainer(broker, ROLLBACK, timeout_s=2.0)
        await trainer
        assert await broker.next_control() is not None

    run(work)


def test_versions_are_listed_with_what_is_left_of_them() -> None:
    async def work(broker: MemoryBroker) -> None:
        assert await restorable_versions(broker) == []
        await broker.set_status("trainer", {"rollback_to": json.dumps({4: True, 3: False})})
        await broker.describe_version(4, {"step": "3"})
        await broker.describe_version(3, {"step": "2"})
        await broker.set_weights(WeightsState(current=4))
        assert await restorable_versions(broker) == [
            "version 4: step 3, weights and optimizer, serves now",
            "version 3: step 2, weights alone",
        ]

    run(work)


@pytest.mark.parametrize("arguments", [["rollback"], ["rollback", "3", "--list"], ["rollback", "0"]])
def test_a_wrong_call_says_what_to_give(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
