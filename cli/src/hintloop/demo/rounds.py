"""Rounds of the demo: talk, wait until the model has learned from it, check, repeat."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence

from hintloop_contract.broker import Broker

from hintloop import funnel
from hintloop.demo.greedy import GreedyCheck
from hintloop.demo.options import BATCH_SIZE, GREEDY_SHARE
from hintloop.demo.preference import Answer
from hintloop.demo.prompts import Question
from hintloop.demo.user import Conversations
from hintloop.errors import DemoError

POLL_S = 0.25
#: How long the pipeline must stand still before it is believed that nothing more is on its way.
QUIET_S = 3.0
#: How long the last answers may take from the proxy through the linker.
ALL_SEEN_S = 10.0


class Rounds:
    """The training part of the demo. ``answers`` are the training answers, a list a round."""

    def __init__(
        self,
        broker: Broker,
        user: Conversations,
        greedy: GreedyCheck,
        questions: Sequence[Question],
        rng: random.Random,
        step_timeout_s: float,
        on_snapshot: Callable[[funnel.Snapshot], None],
    ) -> None:
        self.broker = broker
        self.user = user
        self.greedy = greedy
        self.rng = rng
        self.step_timeout_s = step_timeout_s
        self.on_snapshot = on_snapshot
        self.answers: list[list[Answer]] = []
        self.held: list[str] = []
        """What the release gate said of rounds whose weights it held back."""
        self._questions = self._endless(questions)

    def _endless(self, questions: Sequence[Question]) -> Iterator[Question]:
        """All questions in a random order, again and again."""
        while True:
            yield from self.rng.sample(questions, len(questions))

    async def talk(self, num: int) -> None:
        """Hold ``num`` conversations at once."""
        answers = await self.user.converse_all([next(self._questions) for _ in range(num)])
        self.answers[-1].extend(answers)

    async def step(self) -> int:
        """One round, until new weights are in force, or were held back by the release gate; the version in force.

        Raises:
            DemoError: no new weights within the time for one step.
        """
        deadline = time.monotonic() + self.step_timeout_s
        before = await self.look()
        self.answers.append([])
        await self.talk(BATCH_SIZE)
        seen, seen_at = before, time.monotonic()
        while True:
            now = await self.look()
            if now.weights.updating is None and now.weights.current not in (None, before.weights.current):
                break
            if now.weights.current is not None and (alarm := new_alarm(before, now)):
                self.held.append(alarm)
                break
            if time.monotonic() > deadline:
                raise DemoError(
                    f"no optimizer step within {self.step_timeout_s:.0f} s: the trainer waits for {BATCH_SIZE} samples "
                    f"a step and {waiting(now)} wait; the funnel says where turns were lost"
                )
            if (now.steps, now.drops) != (seen.steps, seen.drops):
                seen, seen_at = now, time.monotonic()
            elif time.monotonic() - seen_at > QUIET_S and (missing := num_missing(before, now)):
                await self.talk(missing)
                seen_at = time.monotonic()
            await asyncio.sleep(POLL_S)
        await self.check_greedy()
        assert now.weights.current is not None
        return now.weights.current

    async def check_greedy(self) -> None:
        """Ask a share of this round's captured answers (two a conversation) again, without sampling."""
        answers = self.answers[-1]
        num = min(len(answers), math.ceil(2 * len(answers) * GREEDY_SHARE))
        for answer in self.rng.sample(answers, num):
            await self.greedy.compare(answer.prompt)

    async def look_at_all(self, num_answered: int) -> funnel.Snapshot:
        """Look once all ``num_answered`` answers were captured and read by the linker, which drops the broken ones."""
        deadline = time.monotonic() + ALL_SEEN_S
        while time.monotonic() < deadline:
            if not num_unseen(await self.look(), num_answered):
                break
            await asyncio.sleep(POLL_S)
        # What is read is decided on at once, but not in the same instant.
        await asyncio.sleep(2 * POLL_S)
        return await self.look()

    async def look(self) -> funnel.Snapshot:
        """Look at the funnel and show it."""
        snapshot = await funnel.take(self.broker)
        self.on_snapshot(snapshot)
        return snapshot


def new_alarm(before: funnel.Snapshot, now: funnel.Snapshot) -> str:
    """What the release gate said of weights that it held back since; empty when it held none back."""
    alarm = now.trainer.get("alarm", "")
    return alarm if alarm != before.trainer.get("alarm", "") else ""


def waiting(snapshot: funnel.Snapshot) -> int:
    """Samples that the trainer has and has not yet put into a batch."""
    return snapshot.steps["scored"] - snapshot.steps["batched"] - snapshot.num_dropped("train")


def num_unseen(snapshot: funnel.Snapshot, num_answered: int) -> int:
    """Answers that are not captured yet, or that the linker has not read."""
    captures = snapshot.streams["captures"]
    return max(0, num_answered - snapshot.steps["captured"]) + captures.length - captures.pending


def num_missing(before: funnel.Snapshot, now: funnel.Snapshot) -> int:
    """Conversations to hold so that this round's batch fills.

    0 while turns are on their way, and from the moment the batch is formed until its weights are in force: answers
    made meanwhile would span two versions.
    """
    on_the_way = now.streams["turns"].length + now.streams["judged"].length
    if on_the_way or now.steps["batched"] > before.steps["batched"]:
        return 0
    return max(0, BATCH_SIZE - waiting(now))
