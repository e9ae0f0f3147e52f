"""Which samples are asked of the PRM, and whose fault it is when it refuses; neither torch's model nor a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hintloop_contract.errors import ConfigError, DependencyError
from hintloop_contract.messages import DropReason, Sample
from hintloop_contract.tensors import pack
from hintloop_trainer.errors import ScoringRefusedError
from hintloop_trainer.filling import Filled, Filler, Filling
from hintloop_trainer.prm_client import Answer, Question, Unscorable

from .conftest import VOCAB, make_sample

PLAN = Filling(
    learned=True,
    own=False,
    chosen=True,
    top_k=2,
    weights="initial",
    batch_size=8,
    vocab_size=VOCAB,
    num_tokens=VOCAB,
)
#: Length of the question that is asked at start.
CHECK = 1


class Ranks:
    """Every sample's candidates are the first two ids."""

    def call(self, method: str, encoded: Sequence[bytes], *arguments: Any) -> Any:
        samples = [msgspec.msgpack.decode(item, type=Sample) for item in encoded]
        return {s.turn_id: np.tile(np.arange(2, dtype=np.int32), (len(s.response_ids), 1)) for s in samples}


class Client:
    """Answers unless ``refuses`` says so of the number of response tokens; ``value`` is every log-probability."""

    def __init__(self, refuses: Callable[[int], bool] = lambda length: False, value: float = -2.0) -> None:
        self.refuses = refuses
        self.value = value
        self.asked: list[int] = []

    async def score(
        self, questions: Sequence[Question], known: dict[int, Answer | Unscorable] | None = None
    ) -> list[Answer | Unscorable]:
        known = {} if known is None else known
        refused = []
        for index, question in enumerate(questions):
            length = len(question.response_ids)
            if index in known:
                continue
            self.asked.append(length)
            if self.refuses(length):
                refused.append(index)
                continue
            rows = np.full((length, 2), self.value)
            tail = np.full(length, -0.5)
            arrays = (pack(rows[:, 0], "float32"), pack(rows, "float16"), pack(tail, "float32"))
            known[index] = Answer(*arrays, model="teacher")
        if refused:
            raise ScoringRefusedError("prm: top_k is too large", tuple(refused))
        return [known[index] for index in range(len(questions))]


def samples(*lengths: int) -> list[Sample]:
    made = [make_sample(turn, num_response=length, teacher_logprobs=None) for turn, length in enumerate(lengths)]
    return [msgspec.structs.replace(sample, hinted_prompt_ids=pack([1, 2, 3], "int32")) for sample in made]


def fill(client: Client, asked: list[Sample]) -> Filled:
    filler = Filler(PLAN, Ranks(), client, lambda what, work: asyncio.run(work()))  # type: ignore[arg-type]
    return filler.fill(asked)


def test_a_sample_that_alone_is_refused_drops_and_the_others_are_not_asked_again() -> None:
    client = Client(refuses=lambda length: length == 5)
    found = fill(client, samples(3, 5, 4))
    assert sorted(found.ready) == ["turn-0000", "turn-0002"]
    assert found.unscorable == {"turn-0001": Unscorable(DropReason.TEACHER_MISSING, "prm: top_k is too large")}
    assert client.asked == [3, 5, 4, CHECK]


def test_an_engine_that_refuses_all_is_waited_for() -> None:
    with pytest.raises(DependencyError, match="top_k is too large"):
        fill(Client(refuses=lambda length: True), samples(3, 5))


def test_a_service_that_refuses_at_the_start_is_the_configurations_fault() -> None:
    client = Client(refuses=lambda length: True)
    filler = Filler(PLAN, Ranks(), client, lambda what, work: asyncio.run(work()))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="use_teacher_topk = false"):
        filler.check()
    assert client.asked == [CHECK]


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 0.5])
def test_what_is_no_log_probability_is_never_trained(value: float) -> None:
    found = fill(Client(value=value), samples(3))
    assert not found.ready
    assert found.unscorable["turn-0000"].reason is DropReason.TEACHER_MISSING
