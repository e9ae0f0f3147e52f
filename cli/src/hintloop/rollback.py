"""`hintloop rollback` and `hintloop resume`: a request to the trainer, and what became of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

import typer
from hintloop_contract.broker import Broker
from hintloop_contract.control import Command, ControlOutcome, ControlRequest, ControlState

from hintloop.deployment import broker_of
from hintloop.errors import CommandError
from hintloop.terminal import harmless

POLL_S = 0.2


class NoAnswerError(CommandError):
    """The trainer did not carry the request out in time."""


def run_rollback(state_dir: Path, files: Sequence[Path], version: int, timeout_s: float) -> None:
    """Ask the trainer to go back to ``version``, and say what became of it.

    Raises:
        StateDirError: the deployment does not answer.
        CommandError: the trainer refused, or did not answer in time.
    """
    outcome = _asked(state_dir, files, ControlRequest(command=Command.ROLLBACK, version=version), timeout_s)
    typer.echo(f"{harmless(outcome.detail)}. Training is paused; go on with `hintloop resume`")


def run_resume(state_dir: Path, files: Sequence[Path], timeout_s: float) -> None:
    """Ask the trainer to train again. Raises as :func:`run_rollback` does."""
    typer.echo(harmless(_asked(state_dir, files, ControlRequest(command=Command.RESUME), timeout_s).detail))


def run_list(state_dir: Path, files: Sequence[Path]) -> None:
    """Print the versions that can be gone back to, newest first.

    Raises:
        StateDirError: the deployment does not answer.
    """

    async def look() -> list[str]:
        async with broker_of(state_dir, files) as broker:
            return await restorable_versions(broker)

    typer.echo("\n".join(asyncio.run(look())) or "no version can be gone back to yet")


async def restorable_versions(broker: Broker) -> list[str]:
    """A line for each version that the trainer said it can go back to, newest first."""
    status = await broker.get_status("trainer")
    current = (await broker.weights()).current
    lines = []
    for name, with_optimizer in json.loads(status.get("rollback_to") or "{}").items():
        step = (await broker.version_notes(int(name))).get("step", "?")
        left = "weights and optimizer" if with_optimizer else "weights alone"
        serves = ", serves now" if current == int(name) else ""
        lines.append(f"version {name}: step {step}, {left}{serves}")
    return lines


def _asked(state_dir: Path, files: Sequence[Path], request: ControlRequest, timeout_s: float) -> ControlOutcome:
    async def work() -> ControlOutcome:
        async with broker_of(state_dir, files) as broker:
            return await ask_trainer(broker, request, timeout_s)

    return asyncio.run(work())


async def ask_trainer(broker: Broker, request: ControlRequest, timeout_s: float) -> ControlOutcome:
    """Put a request to the trainer and wait until it is done.

    Raises:
        CommandError: it was refused, or not begun or ended in time; one that was not begun is withdrawn.
        DependencyError: Redis is away.
    """
    request_id = await broker.ask_control(request)
    until = time.monotonic() + timeout_s
    try:
        while time.monotonic() < until:
            outcome = await broker.control_outcome(request_id)
            if outcome is not None and outcome.state != ControlState.ACCEPTED:
                return _done(outcome)
            await asyncio.sleep(POLL_S)
    except asyncio.CancelledError:
        await broker.withdraw_control(request_id)
        raise
    phase = (await broker.get_status("trainer")).get("phase", "")
    if await broker.withdraw_control(request_id):
        last = f"its last word was {phase!r}" if phase else "none ever ran here"
        raise NoAnswerError(
            f"no trainer took the request within {timeout_s:.0f} s ({last}), and it is withdrawn. Start the trainer, "
            "or give a longer --timeout if its steps take longer than that"
        )
    outcome = await broker.control_outcome(request_id)
    if outcome is not None and outcome.state != ControlState.ACCEPTED:
        return _done(outcome)
    raise NoAnswerError(
        f"the trainer has begun and is not done within {timeout_s:.0f} s (phase {phase!r}); it goes on, after a "
        "restart, too. `hintloop status` shows how far it is"
    )


def _done(outcome: ControlOutcome) -> ControlOutcome:
    if outcome.state == ControlState.REFUSED:
        raise CommandError(f"the trainer refused: {outcome.detail}")
    return outcome
