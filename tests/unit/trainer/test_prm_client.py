"""The trainer's gRPC calls, against a service in the process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from hintloop_contract.config.signal import PrmSection
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import DropReason
from hintloop_contract.scoring.packing import to_tensor
from hintloop_contract.scoring.v1.scoring_pb2 import ScorePart, ScoreReply, Tensor
from hintloop_contract.tensors import pack, unpack
from hintloop_trainer import prm_client
from hintloop_trainer.errors import ScoringRefusedError
from hintloop_trainer.prm_client import Answer, PrmClient, Question, Unscorable

from .fake_prm import FakePrm


@pytest.fixture
async def prm() -> AsyncIterator[FakePrm]:
    service = FakePrm(score=by_token)
    await service.start()
    yield service
    await service.stop()


def by_token(prompt: list[int], response: list[int], candidates: list[list[int]] | None) -> tuple[object, object]:
    """A token's score names the token and the length before it."""
    logprobs = [-(token + (len(prompt) + t) / 1000) for t, token in enumerate(response)]
    return np.array(logprobs), None if candidates is None else -2.0 - np.array(candidates, np.float64)


def client_of(service: FakePrm, *, dtype: str = "float16", **prm: object) -> PrmClient:
    return PrmClient(PrmSection.model_validate({"grpc_address": f"127.0.0.1:{service.port}", **prm}), dtype)


def question(num_prompt: int, response: list[int], candidates: list[list[int]] | None = None) -> Question:
    chosen = None if candidates is None else pack(candidates, "int32")
    return Question(pack(list(range(num_prompt)), "int32"), pack(response, "int32"), chosen)


async def test_answers_come_in_the_order_of_the_questions(prm: FakePrm) -> None:
    client = client_of(prm)
    asked = [question(2, list(range(1, 9))), question(5, [7]), question(1, [3, 1, 2], [[0, 1], [2, 3], [4, 5]])]
    first, second, third = await client.score(asked)
    assert isinstance(first, Answer) and isinstance(second, Answer) and isinstance(third, Answer)
    np.testing.assert_allclose(unpack(first.logprobs), [-(t + (1 + t) / 1000) for t in range(1, 9)], rtol=1e-6)
    np.testing.assert_allclose(unpack(second.logprobs), [-7.005], rtol=1e-6)
    assert first.topk_logprobs is None and first.tail_logprobs is None
    assert third.topk_logprobs is not None and third.tail_logprobs is not None
    assert third.topk_logprobs.dtype == "float16"
    assert unpack(third.topk_logprobs).tolist() == [[-2, -3], [-4, -5], [-6, -7]]
    np.testing.assert_allclose(unpack(third.tail_logprobs)[0], np.log(1 - np.exp(-2.0) - np.exp(-3.0)), rtol=1e-6)
    await client.close()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
async def test_the_candidates_dtype_is_as_configured(prm: FakePrm, dtype: str) -> None:
    client = client_of(prm, dtype=dtype)
    (found,) = await client.score([question(1, [1], [[0]])])
    assert isinstance(found, Answer) and found.topk_logprobs is not None
    assert found.topk_logprobs.dtype == prm.requests[0].topk_dtype == dtype
    await client.close()


async def test_large_collections_take_several_requests(prm: FakePrm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prm_client, "REQUEST_BYTES", 100)
    client = client_of(prm)
    found = await client.score([question(1, [token]) for token in range(9)])
    assert [float(unpack(a.logprobs)[0]) for a in found if isinstance(a, Answer)] == pytest.approx(
        [-(t + 0.001) for t in range(9)]
    )
    assert await client.score([]) == []
    await client.close()


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("OUT_OF_RANGE", DropReason.TOO_LONG),
        ("DATA_LOSS", DropReason.TEACHER_MISSING),
        ("INVALID_ARGUMENT", DropReason.TEACHER_MISALIGNED),
    ],
)
async def test_a_sample_at_fault_is_told_beside_the_others(prm: FakePrm, status: str, reason: DropReason) -> None:
    prm.statuses[0] = (status, "why")
    client = client_of(prm)
    good, bad = await client.score([question(1, [1]), question(1, [2])])
    assert isinstance(good, Answer)
    assert bad == Unscorable(reason, "why")
    await client.close()


async def test_another_number_of_scores_than_tokens_is_no_answer(prm: FakePrm) -> None:
    prm.score = lambda prompt, response, candidates: (np.full(len(response) - 1, -1.0), None)
    client = client_of(prm)
    (found,) = await client.score([question(1, [1, 2, 3])])
    assert isinstance(found, Unscorable)
    assert (found.reason, found.detail) == (DropReason.TEACHER_MISALIGNED, "logprobs have shape [2], expected [3]")
    await client.close()


@pytest.mark.parametrize("status", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL"])
async def test_an_engine_that_is_away_is_no_samples_fault(prm: FakePrm, status: str) -> None:
    prm.statuses[0] = (status, "gone")
    client = client_of(prm)
    with pytest.raises(DependencyError, match=f"{status}: gone"):
        await client.score([question(1, [1]), question(1, [2])])
    await client.close()


async def test_a_stopped_service_is_waited_for_and_found_again(prm: FakePrm) -> None:
    client = client_of(prm)
    assert await client.health() == (True, "")
    await prm.stop()
    with pytest.raises(DependencyError, match="UNAVAILABLE"):
        await client.score([question(1, [1])])
    there, detail = await client.health()
    assert (there, "UNAVAILABLE" in detail) == (False, True)
    await prm.start()
    async with asyncio.timeout(60):
        while not (await client.health())[0]:
            await asyncio.sleep(0.05)
    assert isinstance((await client.score([question(1, [1])]))[0], Answer)
    await client.close()


async def test_what_cannot_be_done_is_refused(prm: FakePrm) -> None:
    client = client_of(prm)
    prm.refusal = (grpc.StatusCode.FAILED_PRECONDITION, "this engine scores no given candidates")
    with pytest.raises(ScoringRefusedError, match="scores no given candidates"):
        await client.score([question(1, [1])])
    prm.refusal = None
    prm.statuses[0] = ("FAILED_PRECONDITION", "top_k 500: at most 64")
    with pytest.raises(ScoringRefusedError, match="at most 64"):
        await client.score([question(1, [1])])
    await client.close()


async def test_the_caller_s_key_is_presented(prm: FakePrm) -> None:
    prm.key = "hl-secret"
    bare, wrong = client_of(prm), client_of(prm, caller_key="hl-other")
    for client in (bare, wrong):
        with pytest.raises(ScoringRefusedError, match=r"prm\.caller_key"):
            await client.score([question(1, [1])])
        await client.close()
    known = client_of(prm, caller_key="hl-secret")
    assert isinstance((await known.score([question(1, [1])]))[0], Answer)
    await known.close()


@pytest.mark.parametrize(("configured", "asked"), [("zstd", "planes-zstd"), ("none", "")])
async def test_encoding_is_asked_as_configured(prm: FakePrm, configured: str, asked: str) -> None:
    client = client_of(prm, grpc_compression=configured)
    assert isinstance((await client.score([question(1, [1] * 50)]))[0], Answer)
    assert prm.requests[-1].encoding == asked
    await client.close()


def lying(*parts: ScorePart) -> Any:
    """A service that answers every question with these parts."""
    return lambda index, request: parts


def reply(logprobs: Any, dtype: str = "float32", **fields: Any) -> ScoreReply:
    return ScoreReply(logprobs=to_tensor(logprobs, dtype), **fields)


CHOSEN = [[0, 1], [2, 3], [4, 5]]
TAIL = to_tensor([-1.0] * 3, "float32")
DAMAGED = Tensor(dtype="float32", shape=[3], data=b"damaged", encoding="planes-zstd")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([ScorePart(reply=reply([-1.0] * 3), last=True)], "topk_logprobs: dtype ''"),
        ([ScorePart(reply=reply([-1.0] * 3, "float16"), last=True)], "logprobs: dtype 'float16'"),
        ([ScorePart(reply=reply([[-1.0]] * 3), last=True)], "logprobs: shape [3, 1]"),
        ([ScorePart(reply=ScoreReply(logprobs=DAMAGED), last=True)], "logprobs: planes-zstd data cannot be read"),
        ([ScorePart(start=1, reply=reply([-1.0] * 3), last=True)], "a part begins at token 1, expected is 0"),
        (
            [ScorePart(reply=reply([-1.0] * 2)), ScorePart(start=1, reply=reply([-1.0]), last=True)],
            "a part begins at token 1, expected is 2",
        ),
        (
            [ScorePart(reply=reply([-1.0] * 3, topk_logprobs=to_tensor([[-1.0]] * 3, "float16")), last=True)],
            "topk_logprobs have shape [3, 1], expected [3, 2]",
        ),
        (
            [
                ScorePart(
                    reply=reply([-1.0] * 3, topk_logprobs=to_tensor([[-1.0] * 2] * 3, "float32"), tail_logprobs=TAIL),
                    last=True,
                )
            ],
            "topk_logprobs: dtype 'float32', expected float16",
        ),
    ],
)
async def test_an_answer_of_another_form_is_none(prm: FakePrm, parts: list[ScorePart], words: str) -> None:
    prm._parts = lying(*parts)  # type: ignore[method-assign]
    client = client_of(prm)
    (found,) = await client.score([question(1, [1, 2, 3], CHOSEN)])
    assert isinstance(found, Unscorable)
    assert (found.reason, found.detail.startswith(words)) == (DropReason.TEACHER_MISALIGNED, True)
    await client.close()


@pytest.mark.parametrize("sequence", [1, 2**31])
async def test_an_answer_to_nothing_that_was_asked_is_the_services_fault(prm: FakePrm, sequence: int) -> None:
    prm._parts = lying(ScorePart(sequence=sequence, last=True))  # type: ignore[method-assign]
    client = client_of(prm)
    with pytest.raises(DependencyError, match=f"what was not asked, sequence {sequence}"):
        await client.score([question(1, [1])])
    await client.close()


async def test_a_failure_costs_none_of_the_answers_that_are_there(prm: FakePrm) -> None:
    client = client_of(prm)
    asked = [question(1, [token]) for token in range(4)]
    known: dict[int, Answer | Unscorable] = {}
    prm.statuses[1] = ("UNAVAILABLE", "gone")
    with pytest.raises(DependencyError, match="UNAVAILABLE: gone"):
        await client.score(asked, known)
    assert sorted(known) == [0, 1, 3]
    found = await client.score(asked, known)
    assert [float(unpack(a.logprobs)[0]) for a in found if isinstance(a, Answer)] == pytest.approx(
        [-(t + 0.001) for t in range(4)]
    )
    assert len(prm.requests) == 5
    await client.close()


async def test_a_question_beyond_a_message_is_too_long_and_the_others_are_asked(
    prm: FakePrm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prm_client, "MAX_MESSAGE_BYTES", prm_client.OVERHEAD_BYTES + 1000)
    client = client_of(prm)
    good, long = await client.score([question(1, [1]), question(1, [2] * 300)])
    assert isinstance(good, Answer)
    assert isinstance(long, Unscorable) and long.reason is DropReason.TOO_LONG
    await client.close()


FIRST_IMPORT = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_ENABLE_FORK_SUPPORT"))
sys.meta_path.insert(0, Watch())
import hintloop_trainer.__main__, hintloop_trainer.wiring
"""


def test_grpc_has_no_part_in_forks_of_the_trainer() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_IMPORT], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == ["0"]
