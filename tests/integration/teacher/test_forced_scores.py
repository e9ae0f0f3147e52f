"""Forced scores of short and long answers on the real engines, at every position, against transformers in float32.

Legend: T = response tokens, V = vocabulary, K = candidates.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hintloop_contract.config.schema import Config
from hintloop_contract.tensors import pack, unpack
from hintloop_teacher.forced import ForcedScores
from hintloop_teacher.http import EngineClient, Patience
from hintloop_teacher.probe import ProbeReport, probe
from hintloop_teacher.scoring import ForcedScorer
from hintloop_teacher.vocabulary import Vocabulary, read_vocabulary
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.engine

NUM_TOKENS = 3000
TOP_K = 16
TOLERANCE = 1e-4
#: Spacing of float16 numbers below 2^-14, where their precision is absolute.
SUBNORMAL = 2.0**-25
PROMPT = "<|im_start|>user\nTell me what was counted.<|im_end|>\n<|im_start|>assistant\n"


def long_answer() -> str:
    """More than 3,000 tokens of plain sentences that are easy and hard to guess by turns."""
    names = ("Ada", "Bo", "Chen", "Dara", "Emil", "Fay", "Gus")
    things = ("old maps", "wet stones", "paper boats", "letters", "blue lamps")
    places = ("river", "station", "library", "harbour", "mill", "garden", "bridge", "school", "tower", "market", "well")
    return " ".join(
        f"In {1000 + 7 * i}, {names[i % 7]} counted {i * i % 97} {things[i % 5]} near the {places[i % 11]}."
        for i in range(200)
    )


@dataclass(frozen=True)
class Expected:
    """What transformers says: ``logprobs`` float64 [T] of the answer, and per position the K + 1 best [T, K + 1]
    with the log-mass outside K, all computed from float32 logits."""

    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: np.ndarray
    best_ids: np.ndarray
    best: np.ndarray
    tail: np.ndarray


@pytest.fixture(scope="module")
def vocabulary(smollm2_dir: Path) -> Vocabulary:
    return read_vocabulary(str(smollm2_dir), str(smollm2_dir))


@pytest.fixture(scope="module")
def expected(smollm2_dir: Path, vocabulary: Vocabulary) -> Expected:
    prompt, response = vocabulary.encode(PROMPT), vocabulary.encode(long_answer())[:NUM_TOKENS]
    assert len(response) == NUM_TOKENS
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32).eval()
    logprobs, best_ids, best, tail = [], [], [], []
    with torch.inference_mode():
        hidden = model.model(torch.tensor([prompt + response])).last_hidden_state[0]
        # Position i predicts token i + 1; logits of a few hundred positions at a time.
        for begin in range(0, NUM_TOKENS, 250):
            rows = slice(len(prompt) - 1 + begin, len(prompt) - 1 + min(begin + 250, NUM_TOKENS))
            logprobs_TV = torch.log_softmax(model.lm_head(hidden[rows]).double(), dim=-1)
            tokens = torch.tensor(response[begin : begin + 250])
            logprobs.append(logprobs_TV.gather(1, tokens[:, None])[:, 0])
            top = logprobs_TV.topk(TOP_K, dim=-1)
            best.append(top.values)
            best_ids.append(top.indices)
            rest = logprobs_TV.scatter(1, top.indices, float("-inf"))
            tail.append(torch.logsumexp(rest, dim=-1))
    arrays = [torch.cat(parts).numpy() for parts in (logprobs, best_ids, best, tail)]
    return Expected(prompt, response, *arrays)


@dataclass(frozen=True)
class Probed:
    scorer: ForcedScorer
    report: ProbeReport
    kind: str


@pytest.fixture(params=["vllm", "sglang"])
async def probed(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> AsyncIterator[Probed]:
    """Each engine's scorer, as the probe at start gives it."""
    served: Any = request.getfixturevalue(f"{request.param}_policy")
    client = EngineClient(served.base_url, dependency="prm-engine", patience=Patience(timeout_s=280, deadline_s=290))
    scorer, report = await probe(client, Config.model_validate({}).prm, vocabulary, TOP_K)
    yield Probed(scorer, report, served.kind)
    await client.close()


def check(scores: ForcedScores, expected: Expected, count: int) -> None:
    assert scores.topk_ids is not None and scores.topk_logprobs is not None and scores.tail_logprobs is not None
    assert scores.logprobs.shape == (count,) and scores.topk_logprobs.shape == (count, TOP_K)
    assert np.abs(scores.logprobs - expected.logprobs[:count]).max() < TOLERANCE
    assert np.abs(scores.topk_logprobs - expected.best[:count]).max() < TOLERANCE
    # Where two candidates are nearer than the tolerance, either order is right; else the ids are the same.
    clear = np.abs(np.diff(expected.best[:count], axis=1)) > 2 * TOLERANCE
    same = scores.topk_ids == expected.best_ids[:count]
    inner = np.concatenate([np.ones((count, 1), bool), clear], 1) & np.concatenate(
        [clear, np.zeros((count, 1), bool)], 1
    )
    assert same[inner].all() and inner.mean() > 0.8
    assert np.abs(np.exp(scores.tail_logprobs) - np.exp(expected.tail[:count])).max() < TOLERANCE
    for values, truth in ((scores.logprobs, expected.logprobs), (scores.topk_logprobs, expected.best)):
        # A 0.0 stands only where float32 has no other number for it; never in place of one that was not given.
        assert (truth[:count][values == 0.0] > -1e-6).all()
    packed = unpack(pack(scores.topk_logprobs, "float16")).astype(np.float64)
    error = np.abs(packed - scores.topk_logprobs)
    assert (error <= np.maximum(2.0**-11 * np.abs(scores.topk_logprobs), SUBNORMAL)).all()


async def test_scores_equal_transformers_at_every_position(probed: Probed, expected: Expected) -> None:
    assert probed.report.dialect == probed.kind
    for count in (1, 2, 500, NUM_TOKENS):
        scores = await probed.scorer.score(expected.prompt_ids, expected.response_ids[:count], TOP_K)
        check(scores, expected, count)


async def test_chunks_give_the_numbers_of_one_request(
    sglang_policy: Any, vocabulary: Vocabulary, expected: Expected
) -> None:
    client = EngineClient(sglang_policy.base_url, dependency="prm-engine")
    try:
        section = Config.model_validate({"prm": {"score_chunk_tokens": 128}}).prm
        scorer, _ = await probe(client, section, vocabulary, TOP_K)
        scores = await scorer.score(expected.prompt_ids, expected.response_ids[:500], TOP_K)
    finally:
        await client.close()
    check(scores, expected, 500)


async def test_given_candidates_equal_transformers(probed: Probed, expected: Expected) -> None:
    """Ids that are not the teacher's own best: each place is asked for those of the place before it."""
    count, width = 24, 8
    rows = np.roll(expected.best_ids[: count + 1, :width], 1, axis=0)[1:].tolist()
    scores = await probed.scorer.score(expected.prompt_ids, expected.response_ids[:count], candidate_ids=rows)
    assert scores.topk_ids is not None and scores.topk_logprobs is not None
    assert scores.topk_ids.tolist() == rows
    everything = await probed.scorer.score(expected.prompt_ids, expected.response_ids[:count], TOP_K)
    assert everything.topk_ids is not None and everything.topk_logprobs is not None
    known = 0
    for t in range(count):
        own = dict(zip(expected.best_ids[t].tolist(), expected.best[t].tolist(), strict=True))
        for token, value in zip(rows[t], scores.topk_logprobs[t].tolist(), strict=True):
            if token in own:
                known += 1
                assert value == pytest.approx(own[token], abs=TOLERANCE)
            else:
                assert value < expected.best[t, -1] + TOLERANCE
    assert known > count


async def test_limits_are_found(probed: Probed) -> None:
    limits = probed.report.limits
    assert limits is not None
    assert limits.max_top_k == {"vllm": 64, "sglang": 1024}[probed.kind]
    assert limits.first_entry == "null"
    assert limits.temperature == "scores are at 1, whatever the request's temperature"
    assert limits.given_candidates.startswith({"vllm": "one request a place", "sglang": "one list of ids"}[probed.kind])
