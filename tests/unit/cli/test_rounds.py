import asyncio
import random
from typing import Any

import pytest
from hintloop import funnel
from hintloop.demo.preference import Answer
from hintloop.demo.prompts import Question
from hintloop.demo.rounds import Rounds, num_missing, num_unseen, waiting
from hintloop.errors import DemoError
from hintloop_contract.broker import StreamCounts, WeightsState
from hintloop_contract.messages import Drop
from hintloop_contract.testing.memory import MemoryBroker

QUESTIONS = [Question(f"What is {n}?", str(n)) for n in range(20)]


class FakeUser:
    """Each conversation becomes a scored sample, except the first ``num_lost``."""

    def __init__(self, broker: MemoryBroker, num_lost: int = 0) -> None:
        self.broker = broker
        self.num_lost = num_lost
        self.asked: list[list[Question]] = []

    async def converse_all(self, questions: list[Question]) -> list[Answer]:
        self.asked.append(questions)
        lost, self.num_lost = self.num_lost, 0
        await self.broker.count("scored", len(questions) - lost)
        if (await self.broker.funnel()).steps["scored"] >= 16:
            await self.broker.count("batched", 16)
            await self.broker.count("trained", 16)
            await self.broker.set_weights(WeightsState(current=2, updating=None))
        return [Answer(question.prompt, question.topic, "x", "stop") for question in questions]


class FakeGreedy:
    def __init__(self) -> None:
        self.prompts: list[str] = []

    async def compare(self, prompt: str) -> bool:
        self.prompts.append(prompt)
        return True


def rounds(broker: MemoryBroker, user: FakeUser, timeout_s: float = 120.0) -> tuple[Rounds, FakeGreedy]:
    greedy: Any = FakeGreedy()
    fake: Any = user
    return Rounds(broker, fake, greedy, QUESTIONS, random.Random(0), timeout_s, lambda _: None), greedy


async def test_a_round_holds_a_batch_of_conversations_and_ends_with_new_weights() -> None:
    broker = MemoryBroker()
    await broker.set_weights(WeightsState(current=1, updating=None))
    user = FakeUser(broker)
    session, greedy = rounds(broker, user)
    assert await session.step() == 2
    assert [len(asked) for asked in user.asked] == [16]
    assert len(set(user.asked[0])) == 16
    assert len(session.answers[0]) == 16
    # 5 % of the 32 captured answers.
    assert len(greedy.prompts) == 2
    await broker.close()


async def test_samples_that_were_lost_are_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hintloop.demo.rounds.QUIET_S", 0.2)
    broker = MemoryBroker()
    await broker.set_weights(WeightsState(current=1, updating=None))
    user = FakeUser(broker, num_lost=3)
    session, _ = rounds(broker, user)
    assert await session.step() == 2
    assert [len(asked) for asked in user.asked] == [16, 3]
    await broker.close()


async def test_a_step_that_does_not_come_is_an_error_that_counts_what_waits() -> None:
    broker = MemoryBroker()
    await broker.set_weights(WeightsState(current=1, updating=None))
    user = FakeUser(broker, num_lost=16)
    session, _ = rounds(broker, user, timeout_s=0.3)
    with pytest.raises(DemoError, match="waits for 16 samples a step and 0 wait"):
        await session.step()
    await broker.close()


async def test_questions_come_again_only_when_all_were_asked() -> None:
    broker = MemoryBroker()
    user = FakeUser(broker)
    session, _ = rounds(broker, user)
    session.answers.append([])
    await session.talk(20)
    await session.talk(20)
    assert sorted(q.prompt for q in user.asked[0]) == sorted(q.prompt for q in user.asked[1])
    assert user.asked[0] != user.asked[1]
    await broker.close()


def seen(scored: int, batched: int, on_the_way: int = 0, stale: int = 0) -> funnel.Snapshot:
    return funnel.Snapshot(
        steps={"scored": scored, "batched": batched, "trained": batched},
        drops={"train:stale": stale, "link:no_next_state": 5},
        streams={"turns": StreamCounts(on_the_way, 0), "judged": StreamCounts(0, 0)},
    )


def test_what_is_missing_of_a_batch() -> None:
    assert num_missing(seen(0, 0), seen(13, 0)) == 3
    assert num_missing(seen(16, 16), seen(30, 16)) == 2
    assert num_missing(seen(16, 16), seen(30, 16, stale=1)) == 3
    assert num_missing(seen(0, 0), seen(16, 0)) == 0
    assert waiting(seen(30, 16, stale=1)) == 13


def test_nothing_is_missing_while_turns_are_on_their_way_or_the_batch_is_trained_and_published() -> None:
    assert num_missing(seen(0, 0), seen(13, 0, on_the_way=3)) == 0
    assert num_missing(seen(0, 0), seen(16, 16)) == 0


async def test_the_last_look_waits_for_answers_that_may_still_be_found_broken() -> None:
    broker = MemoryBroker()
    session, _ = rounds(broker, FakeUser(broker))
    await broker.count("captured", 2)

    async def finish() -> None:
        await asyncio.sleep(0.4)
        await broker.count("captured", 1)
        await broker.drop(None, Drop(turn_id="a", stage="capture", reason="count_mismatch"))

    finishing = asyncio.ensure_future(finish())
    snapshot = await session.look_at_all(3)
    await finishing
    assert snapshot.steps["captured"] == 3
    assert snapshot.drops == {"capture:count_mismatch": 1}
    await broker.close()


def test_unseen_are_answers_not_captured_and_captures_not_read() -> None:
    snapshot = funnel.Snapshot(steps={"captured": 8}, streams={"captures": StreamCounts(5, 3)})
    assert num_unseen(snapshot, 10) == 2 + 2
    assert num_unseen(snapshot, 7) == 2


async def test_a_round_whose_weights_are_held_back_ends_and_says_why() -> None:
    broker = MemoryBroker()
    await broker.set_weights(WeightsState(current=1, updating=None))

    class Gated(FakeUser):
        async def converse_all(self, questions: list[Question]) -> list[Answer]:
            await broker.set_status("trainer", {"alarm": "step 1 is held back: entropy"})
            return [Answer(question.prompt, question.topic, "x", "stop") for question in questions]

    session, _ = rounds(broker, Gated(broker))
    assert await session.step() == 1
    assert session.held == ["step 1 is held back: entropy"]
