"""How the training loop waits for what may be away: until it is there, or until it is asked to end."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_trainer import waiting as waits
from hintloop_trainer.background import Background
from hintloop_trainer.errors import CheckpointError, StopRequestedError
from hintloop_trainer.progress import Progress
from hintloop_trainer.waiting import Waiting


class Ranks:
    """Counts how often the other ranks heard of the leader."""

    def __init__(self) -> None:
        self.num_idle = 0

    def idle(self) -> None:
        self.num_idle += 1


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(waits, "LOOK_S", 0.02)
    monkeypatch.setattr(waits, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(Waiting, "status", lambda *args, **kwargs: None)
    with Background() as background:
        deps: Any = SimpleNamespace(
            config=Config.model_validate({}),
            ranks=Ranks(),
            background=background,
            stop=threading.Event(),
        )
        yield Waiting(deps, Progress()), deps


def test_what_takes_its_time_is_waited_for_while_the_other_ranks_hear_of_it(waiting: Any) -> None:
    insisting, deps = waiting
    tries: list[int] = []

    async def work() -> str:
        tries.append(1)
        async with asyncio.timeout(60):
            while deps.ranks.num_idle < 5 * len(tries):
                await asyncio.sleep(0.01)
        if len(tries) == 1:
            raise DependencyError("prm", "gone")
        return "there"

    assert insisting.insist("asking", work, patient=False) == "there"
    assert (len(tries), deps.ranks.num_idle >= 10) == (2, True)


def test_asked_to_end_what_takes_its_time_is_cancelled(waiting: Any) -> None:
    insisting, deps = waiting
    cancelled = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    threading.Timer(0.1, deps.stop.set).start()
    with pytest.raises(StopRequestedError):
        insisting.insist("asking", work, patient=False)
    assert cancelled.wait(60)


def test_what_must_not_be_cut_short_is_waited_for_even_then(waiting: Any) -> None:
    insisting, deps = waiting
    deps.stop.set()

    async def work() -> str:
        await asyncio.sleep(0.1)
        return "released"

    assert insisting.insist("publishing", work) == "released"


def test_what_all_ranks_write_is_tried_again_until_it_can_be_written(waiting: Any) -> None:
    insisting, deps = waiting
    tries: list[tuple[Any, ...]] = []

    def call(method: str, *arguments: Any) -> str:
        tries.append((method, *arguments))
        if len(tries) < 3:
            raise CheckpointError("rank 0: OSError: No space left on device")
        return "digest"

    deps.ranks.call = call
    assert insisting.insist_on_ranks("exporting", "export", "there") == "digest"
    assert tries == [("export", "there")] * 3
    # The others are told that it goes on.
    assert deps.ranks.num_idle == 2
