"""The samples that every contestant trains: made once from a stated distribution, the same for all.

Agent turns: a prompt of 50 to 600 tokens, an answer of 10 to 200, both log-uniform (short ones are commoner), sampled
at temperature 1. Ids and log-probabilities are random: they cost what real ones do.
"""

from __future__ import annotations

import math

import numpy as np
from hintloop_contract.messages import Sample, Sampling
from hintloop_contract.tensors import pack

PROMPT_TOKENS = (50, 600)
ANSWER_TOKENS = (10, 200)


def _length(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    low, high = bounds
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def make(count: int, vocab_size: int, seed: int = 0) -> list[Sample]:
    """``count`` samples with a teacher's log-probabilities."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        answer = _length(rng, ANSWER_TOKENS)
        made.append(
            Sample(
                turn_id=f"turn-{number:04d}",
                session_id="benchmark",
                prompt_ids=pack(rng.integers(0, vocab_size, _length(rng, PROMPT_TOKENS)), "int32"),
                response_ids=pack(rng.integers(0, vocab_size, answer), "int32"),
                behaviour_logprobs=pack(-rng.uniform(8.0, 14.0, answer), "float32"),
                behaviour_space="processed",
                sampling=Sampling(temperature=1.0),
                version_oldest=1,
                version_newest=1,
                captured_ms=0,
                score=1,
                teacher_logprobs=pack(-rng.uniform(8.0, 14.0, answer), "float32"),
            )
        )
    return made


def num_tokens(count: int, vocab_size: int, seed: int = 0) -> int:
    """Prompt and answer tokens of :func:`make`."""
    made = make(count, vocab_size, seed)
    return sum(sample.prompt_ids.shape[0] + sample.response_ids.shape[0] for sample in made)
