"""Requests of operators: one is carried out or taken back, never both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.control import Command, ControlOutcome, ControlRequest, ControlState, Pause
from hintloop_contract.testing.memory import MemoryBroker
from pydantic import ValidationError

ROLLBACK = ControlRequest(command=Command.ROLLBACK, version=7)


def run(work: Callable[[MemoryBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        broker = MemoryBroker()
        await work(broker)
        await broker.close()

    asyncio.run(main())


def test_requests_come_in_order_until_they_are_settled() -> None:
    async def work(broker: MemoryBroker) -> None:
        assert await broker.next_control() is None
        first = await broker.ask_control(ROLLBACK)
        second = await broker.ask_control(ControlRequest(command=Command.RESUME))
        assert await broker.next_control() == (first, ROLLBACK)
        assert await broker.control_outcome(first) is None
        assert await broker.accept_control(first)
        # A trainer that dies here finds it again.
        assert await broker.next_control() == (first, ROLLBACK)
        done = ControlOutcome(state=ControlState.DONE, version=9)
        await broker.settle_control(first, done, pause=Pause(reason="rolled back", since_ms=5))
        assert await broker.control_outcome(first) == done
        assert await broker.paused() == Pause(reason="rolled back", since_ms=5)
        assert (await broker.next_control() or ("", None))[0] == second
        await broker.settle_control(second, ControlOutcome(state=ControlState.DONE), pause=None)
        assert await broker.paused() is None
        assert await broker.next_control() is None

    run(work)


def test_a_request_that_was_begun_is_not_taken_back_and_one_taken_back_is_not_begun() -> None:
    async def work(broker: MemoryBroker) -> None:
        begun = await broker.ask_control(ROLLBACK)
        assert await broker.accept_control(begun)
        assert not await broker.withdraw_control(begun)
        taken_back = await broker.ask_control(ROLLBACK)
        assert await broker.withdraw_control(taken_back)
        assert not await broker.accept_control(taken_back)
        assert await broker.next_control() == (begun, ROLLBACK)

    run(work)


@pytest.mark.parametrize("fields", [{"data": b"\xc1"}, {"data": b""}, {"date": b"x"}, {"data": b"\x81\xa1\xff\x01"}])
def test_a_request_that_cannot_be_read_holds_up_no_other(fields: dict[str, bytes]) -> None:
    async def work(broker: MemoryBroker) -> None:
        await broker.client.xadd(broker.keys.control, fields)
        second = await broker.ask_control(ROLLBACK)
        request_id, request = await broker.next_control() or ("", ROLLBACK)
        assert request.command not in set(Command)
        await broker.settle_control(request_id, ControlOutcome(state=ControlState.REFUSED), pause=None)
        assert await broker.next_control() == (second, ROLLBACK)

    run(work)


def test_notes_of_a_version_are_read_as_they_were_written() -> None:
    async def work(broker: MemoryBroker) -> None:
        assert await broker.version_notes(3) == {}
        await broker.describe_version(3, {"step": "2", "parent": ""})
        assert await broker.version_notes(3) == {"step": "2", "parent": ""}

    run(work)


def test_an_engine_of_the_policy_is_no_engine_of_the_gate() -> None:
    engines = {"policy": {"engines": ["http://127.0.0.1:8100", "http://127.0.0.1:8101"]}}
    with pytest.raises(ValidationError, match="is an engine of the policy"):
        Config.model_validate({**engines, "gate": {"engine_url": "http://127.0.0.1:8101/"}})
    config = Config.model_validate({**engines, "gate": {"engine_url": "http://127.0.0.1:8102"}})
    assert config.gate.engine_url == "http://127.0.0.1:8102"
