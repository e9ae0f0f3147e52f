"""`--active`: what is asked of the trainer, and what is made of its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hintloop.doctor.checks import active
from hintloop.doctor.finding import Finding, Outcome
from hintloop.doctor.look import Look, looking
from hintloop.errors import CommandError
from hintloop_contract.broker import WeightsState
from hintloop_contract.config import load_config
from hintloop_contract.control import Command, ControlOutcome, ControlRequest
from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.diagnosis.figures import Seen
from hintloop_contract.testing.memory import MemoryBroker

from .test_doctor import write_config


async def asked(tmp_path: Path, status: dict[str, str]) -> tuple[list[Finding], Look]:
    async with looking(load_config([write_config(tmp_path, "")], environ={})) as look:
        await look.broker.close()
        look.broker = MemoryBroker()
        await look.broker.ensure_groups()
        await look.broker.set_weights(WeightsState(current=6))
        look.seen = Seen(trainer=status)
        return await active.check(look), look


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({}, "no trainer runs"),
        ({"phase": "failed"}, "no trainer runs"),
        ({"phase": "paused", "paused": "rolled back to version 3"}, "rolled back to version 3"),
    ],
)
async def test_nobody_is_asked_where_nobody_can_do_it(tmp_path: Path, status: dict[str, str], words: str) -> None:
    (finding,), look = await asked(tmp_path, status)
    assert finding.outcome is Outcome.SKIPPED and words in finding.seen
    assert await look.broker.next_control() is None


async def test_a_drill_is_asked_for_and_the_engines_are_looked_at_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Any] = []

    async def done(_: object, request: ControlRequest, __: float) -> ControlOutcome:
        requests.append(request)
        return ControlOutcome(
            state="done", detail="version 4 was published anew as 5, and gone back to as 6", version=6
        )

    monkeypatch.setattr(active, "ask_trainer", done)
    findings, look = await asked(tmp_path, {"phase": "collecting"})
    assert [request.command for request in requests] == [Command.DRILL]
    assert findings[0].seen.endswith("gone back to as 6")
    assert look.seen is not None and look.seen.weights.current == 6, "Redis was looked at anew"
    assert [finding.check for finding in findings[1:]][:1] == ["weights"]


async def test_a_trainer_that_does_not_do_it_cannot_publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> ControlOutcome:
        raise CommandError("the trainer refused: the newest weights are not released")

    monkeypatch.setattr(active, "ask_trainer", refused)
    (finding,), _ = await asked(tmp_path, {"phase": "collecting"})
    assert finding.cause is Cause.WEIGHTS_NEVER_PUBLISHED and "not released" in finding.seen
