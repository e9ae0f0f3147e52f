"""From the trainer's client over gRPC to a real engine and back: what arrives is what transformers says."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from hintloop_contract.config.schema import Config
from hintloop_contract.scoring.channel import CLIENT_OPTIONS
from hintloop_contract.scoring.packing import to_array, to_tensor
from hintloop_contract.scoring.v1.scoring_pb2 import ScoreRequest
from hintloop_contract.scoring.v1.scoring_pb2_grpc import ForcedScoringStub
from hintloop_contract.tensors import pack, unpack
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_teacher.grpc_server import listening
from hintloop_teacher.wiring import build_deps
from hintloop_trainer import null_hint
from hintloop_trainer.null_hint import NullHint, Reference
from hintloop_trainer.prm_client import Answer, PrmClient, Question
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.engine

PROMPT = [1, 4093, 198, 1780, 314, 253, 21893, 47, 2, 198, 1, 520, 9531, 198]
RESPONSE = [49, 21893, 314, 253, 6183, 338, 9495, 14150, 288, 253, 8169, 282, 29474, 5843, 30, 2]
#: float16 keeps eleven binary digits.
HALF = 2.0**-11


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_policy")


@pytest.fixture(scope="module")
def rows(smollm2_dir: Path) -> np.ndarray[Any, Any]:
    """float64 log-probabilities [T, V] at the response's places."""
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT + RESPONSE])).logits[0, len(PROMPT) - 1 : -1].double()
    return logits.log_softmax(-1).numpy()


@pytest.fixture
async def config(engine: Any, smollm2_dir: Path) -> AsyncIterator[Config]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = Config.model_validate(
        {
            "model": {"student_model_path": str(smollm2_dir), "dtype": "float32"},
            "prm": {"prm_url": engine.base_url, "grpc_port": port},
        }
    )
    broker = MemoryBroker()
    deps = await build_deps(config, broker)
    async with listening(deps):
        yield config
    await deps.renderer.close()
    await deps.engine.close()
    await broker.close()


async def test_top_k_arrives_packed(config: Config, engine: Any, rows: np.ndarray[Any, Any]) -> None:
    async with grpc.aio.insecure_channel(config.prm.grpc_target, options=CLIENT_OPTIONS) as channel:
        found = await ForcedScoringStub(channel).Score(
            ScoreRequest(prompt_ids=to_tensor(PROMPT, "int32"), response_ids=to_tensor(RESPONSE, "int32"), top_k=16)
        )
    assert (found.dialect, found.num_response_tokens) == (engine.kind, len(RESPONSE))
    own = to_array(found.logprobs, "logprobs", dtypes=("float32",), ndim=1)
    np.testing.assert_allclose(own, rows[np.arange(len(RESPONSE)), RESPONSE], atol=1e-4)
    ids = to_array(found.topk_ids, "topk_ids", dtypes=("int32",), ndim=2)
    best = np.sort(rows, axis=1)[:, ::-1][:, :16]
    values = to_array(found.topk_logprobs, "topk_logprobs", dtypes=("float16",), ndim=2)
    np.testing.assert_allclose(np.take_along_axis(rows, ids.astype(np.int64), axis=1), best, atol=1e-4)
    np.testing.assert_allclose(values, best, rtol=HALF, atol=1e-4)
    tail = to_array(found.tail_logprobs, "tail_logprobs", dtypes=("float32",), ndim=1)
    np.testing.assert_allclose(tail, np.log1p(-np.exp(best).sum(1)), atol=1e-3)


async def test_the_students_candidates_are_scored_exactly(config: Config, rows: np.ndarray[Any, Any]) -> None:
    rng = np.random.default_rng(3)
    chosen = np.stack([rng.permutation(rows.shape[1])[:8] for _ in RESPONSE])
    chosen[:, 0] = rows.argmax(1)
    client = PrmClient(config.prm, "float32")
    question = Question(pack(PROMPT, "int32"), pack(RESPONSE, "int32"), pack(chosen, "int32"))
    one, two = await client.score([question, question])
    for answer in (one, two):
        assert isinstance(answer, Answer)
        assert answer.topk_logprobs is not None and answer.tail_logprobs is not None
        expected = np.take_along_axis(rows, chosen, axis=1)
        np.testing.assert_allclose(unpack(answer.topk_logprobs), expected, atol=1e-4)
        np.testing.assert_allclose(unpack(answer.tail_logprobs), np.log1p(-np.exp(expected).sum(1)), atol=1e-3)
        np.testing.assert_allclose(unpack(answer.logprobs), rows[np.arange(len(RESPONSE)), RESPONSE], atol=1e-4)
    await client.close()


async def test_the_null_hint_control_passes_on_equal_weights(config: Config, rows: np.ndarray[Any, Any]) -> None:
    """``rows`` are of the response behind the prompt; the control scores from the first token on."""
    client = PrmClient(config.prm, "float16")
    (answer,) = await client.score([Question(pack(PROMPT[:1], "int32"), pack(PROMPT[1:] + RESPONSE, "int32"))])
    assert isinstance(answer, Answer)
    scores = unpack(answer.logprobs).tolist()
    known = scores[: len(PROMPT) - 1] + rows[np.arange(len(RESPONSE)), RESPONSE].tolist()
    limits = null_hint.tolerances(config)
    found = await null_hint.compare(client, Reference("m", "float32", PROMPT + RESPONSE, known), limits)
    assert isinstance(found, NullHint)
    assert found.passed and 0 < found.largest < 1e-3
    shifted = Reference("m", "float32", PROMPT + RESPONSE, known[1:] + known[:1])
    moved = await null_hint.compare(client, shifted, limits)
    assert isinstance(moved, NullHint) and not moved.passed and moved.mean > 0.5
    await client.close()
