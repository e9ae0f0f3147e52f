"""Faults of the trainer: steps that move nothing, a trainer that falls behind, a Redis that is full."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .agent import Day
from .configuration import overlaid
from .deployment import Deployment
from .fault import Fault, Injector
from .wire import Asked, Change

#: Steps of a run that moves nothing.
STEPS = 2
#: Turns that are turned away before a trainer counts as slow, and most rounds of talk until then.
MANY_TURNED_AWAY, MOST_ROUNDS = 24, 16

ZERO_MASK = """import torch

from hintloop_trainer.losses.inputs import LossInputs, TokenLosses

REQUIRES = {"teacher_logprobs"}


def compute_loss(inputs: LossInputs) -> TokenLosses:
    mask_N = torch.zeros_like(inputs.logprobs_N)
    advantages_N = (inputs.teacher_logprobs_N - inputs.old_logprobs_N).detach()
    return TokenLosses(losses_N=-(advantages_N * inputs.logprobs_N * mask_N))
"""


def running(name: str, values: Mapping[str, Mapping[str, Any]], steps: int = STEPS) -> Injector:
    """A run of its own from the student's first weights, under these keys, for some steps."""

    @contextmanager
    def inject(stack: Deployment) -> Iterator[None]:
        run = stack.folder / name
        keys = {section: dict(entries) for section, entries in values.items()}
        keys.setdefault("training", {})["checkpoint_dir"] = str(run / "checkpoints")
        with stack.traffic.put_aside(fresh=True), stack.with_given(stack.overlay(name, keys), "trainer"):
            stack.train(steps)
            yield
        shutil.rmtree(run, ignore_errors=True)

    return inject


@contextmanager
def masked_loss(stack: Deployment) -> Iterator[None]:
    """A loss of the user's own whose mask holds no token."""
    (stack.folder / "masked_loss.py").write_text(ZERO_MASK, encoding="utf-8")
    values = {"training": {"use_custom_loss": True, "custom_loss_path": "masked_loss.py"}}
    with stack.with_given(stack.overlay("masked-loss", values)):
        yield


@contextmanager
def slow_training(stack: Deployment) -> Iterator[None]:
    """One step of staleness is allowed, and every release takes longer than agents take to fill that.

    Answers given during a release may be of two versions here: else that, not their age, would be why they are lost.
    """
    released = asyncio.Event()

    async def before(asked: Asked) -> None:
        if asked.path == "/pause":
            await released.wait()

    given = stack.overlay("staleness-1", {"training": {"max_staleness_steps": 1, "allow_mixed_version": True}})
    with stack.traffic.put_aside(fresh=True), stack.with_given(given, "rollout-proxy", "prm"):
        with stack.policy_wire.changed(Change(before=before)):
            for _ in range(MOST_ROUNDS):
                stack.talk(3, Day(turns=4))
                if _turned_away(stack) >= MANY_TURNED_AWAY:
                    break
            stack.wait_for("turned away", lambda: _turned_away(stack) >= MANY_TURNED_AWAY)
            yield
            stack.background.run(_set(released))
        stack.wait_for("the release", stack.settled, 120.0)


def _turned_away(stack: Deployment) -> int:
    return stack.dropped().get("link:backpressure", 0)


async def _set(event: asyncio.Event) -> None:
    event.set()


def full_redis(headroom: int) -> Injector:
    """Redis may hold ``headroom`` bytes more than it does, and agents go on talking."""

    @contextmanager
    def inject(stack: Deployment) -> Iterator[None]:
        used = int(stack.redis.info("memory")["used_memory"])
        limit = stack.redis.config_get("maxmemory")["maxmemory"]
        with stack.traffic.put_aside(fresh=False):
            stack.redis.config_set("maxmemory", used + headroom)
            try:
                stack.talk(4, Day(turns=3))
                yield
            finally:
                stack.redis.config_set("maxmemory", limit)

    return inject


MASKED = {"training": {"is_correction": "mask", "tis_cap": 0.001}}

FAULTS = [
    Fault(
        "learning rate 0",
        overlaid("lr-0", {"training": {"learning_rate": 0.0}}),
        running("lr-tiny", {"training": {"learning_rate": 1e-30}}),
        trains=True,
    ),
    Fault("loss mask all zero", running("masked", MASKED), masked_loss, trains=True),
    Fault(
        "staleness bound 0 with slow training",
        overlaid("staleness-0", {"training": {"max_staleness_steps": 0}}),
        slow_training,
        trains=True,
    ),
    Fault("Redis bound reached", full_redis(0), full_redis(64 * 1024)),
]
