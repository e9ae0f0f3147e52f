"""Both engines give the probabilities that transformers gives, before and after new weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import PROMPTS, Engine, Reference

pytestmark = pytest.mark.engine

NUM_TOKENS = 12
TOLERANCE = 1e-4


def max_difference(left: list[float], right: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


def answered(reference: Reference, prompt: str) -> list[int]:
    """The rendered prompt followed by the reference's own greedy answer."""
    ids = reference.prompt_ids(prompt)
    return ids + reference.greedy_ids(ids, NUM_TOKENS)


@pytest.fixture
def reloaded(engine: Engine, perturbed_dir: Path) -> Iterator[Engine]:
    """The engine with the perturbed weights; the base weights are back afterwards, also on failure."""
    try:
        engine.load(perturbed_dir)
        yield engine
    finally:
        engine.load(engine.served.model_dir)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_forced_scores_equal_transformers(engine: Engine, base: Reference, prompt: str) -> None:
    ids = answered(base, prompt)
    assert max_difference(engine.forced_scores(ids), base.forced_scores(ids)) < TOLERANCE


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_answer_equals_transformers(engine: Engine, base: Reference, prompt: str) -> None:
    ids = base.prompt_ids(prompt)
    expected = base.greedy_ids(ids, NUM_TOKENS)
    assert engine.greedy_ids(ids, NUM_TOKENS) == expected


def test_new_weights_reach_scores_and_generation(reloaded: Engine, base: Reference, perturbed: Reference) -> None:
    """The output head is tied to the embedding: a stale head would keep the scores of neither model."""
    for prompt in PROMPTS:
        ids = answered(perturbed, prompt)
        scores = reloaded.forced_scores(ids)
        assert max_difference(scores, base.forced_scores(ids)) > 0.05
        assert max_difference(scores, perturbed.forced_scores(ids)) < TOLERANCE
        prompt_ids = perturbed.prompt_ids(prompt)
        assert reloaded.greedy_ids(prompt_ids, NUM_TOKENS) == ids[len(prompt_ids) :]


def test_base_weights_come_back(engine: Engine, perturbed_dir: Path, base: Reference) -> None:
    ids = answered(base, PROMPTS[0])
    before = engine.forced_scores(ids)
    engine.load(perturbed_dir)
    engine.load(engine.served.model_dir)
    assert engine.forced_scores(ids) == pytest.approx(before, abs=1e-6)


def test_a_directory_without_weights_is_refused_and_changes_nothing(
    engine: Engine, base: Reference, tmp_path: Path
) -> None:
    ids = answered(base, PROMPTS[0])
    refusal: Any
    if engine.is_vllm:
        call = {"method": "hintloop_reload", "kwargs": {"weights_path": str(tmp_path)}}
        (refusal,) = engine.post("/collective_rpc", call)["results"]
        assert str(tmp_path) in refusal["message"]
    else:
        answer = engine.client.post("/update_weights_from_disk", json={"model_path": str(tmp_path)})
        refusal = answer.json()
    assert refusal["success"] is False
    assert max_difference(engine.forced_scores(ids), base.forced_scores(ids)) < TOLERANCE
