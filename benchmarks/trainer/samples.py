"""The samples that every contestant trains: made once from a stated distribution, the same for all.

Turns of agents, each in a session of its own, as they come in one after another. A session opens with a prompt of 50 to
600 tokens; an answer has 10 to 200; a later turn's prompt is the turn before it, its answer included, and 10 to 200
tokens of what came next. All log-uniform (short ones are commoner), sampled at temperature 1. Three in ten answers come
back with other ids than they were sampled with, as a tokenizer writes their text (what was measured at temperature 1
stands in decision 21). Ids and log-probabilities are random: they cost what real ones do.
"""

from __future__ import annotations

import math

import numpy as np
from hintloop_contract.messages import Sample, Sampling
from hintloop_contract.tensors import pack
from numpy.typing import NDArray

OPENING_TOKENS = (50, 600)
ANSWER_TOKENS = (10, 200)
NEXT_TOKENS = (10, 200)
SHARE_WRITTEN_ANEW = 0.3


def _ids(rng: np.random.Generator, bounds: tuple[int, int], vocab_size: int) -> NDArray[np.int64]:
    low, high = bounds
    return rng.integers(0, vocab_size, round(math.exp(rng.uniform(math.log(low), math.log(high)))))


def _as_written(rng: np.random.Generator, answer: NDArray[np.int64], vocab_size: int) -> NDArray[np.int64]:
    """The answer as later prompts hold it: as it was sampled, or with one id that is another."""
    if rng.random() >= SHARE_WRITTEN_ANEW:
        return answer
    place, found = rng.integers(0, len(answer) - 1), answer.copy()
    found[place] = (found[place] + 1) % vocab_size
    return found


def make(count: int, vocab_size: int, seed: int = 0, *, sessions: int) -> list[Sample]:
    """``count`` turns of ``sessions`` sessions, one of each by turns, with a teacher's log-probabilities."""
    rng = np.random.default_rng(seed)
    pasts: dict[int, NDArray[np.int64]] = {}
    made = []
    for number in range(count):
        session = number % sessions
        prompt = _ids(rng, OPENING_TOKENS, vocab_size)
        if session in pasts:
            prompt = np.concatenate([pasts[session], _ids(rng, NEXT_TOKENS, vocab_size)])
        answer = _ids(rng, ANSWER_TOKENS, vocab_size)
        pasts[session] = np.concatenate([prompt, _as_written(rng, answer, vocab_size)])
        made.append(
            Sample(
                turn_id=f"turn-{number:04d}",
                session_id=f"session-{session:04d}",
                prompt_ids=pack(prompt, "int32"),
                response_ids=pack(answer, "int32"),
                behaviour_logprobs=pack(-rng.uniform(8.0, 14.0, len(answer)), "float32"),
                behaviour_space="processed",
                sampling=Sampling(temperature=1.0),
                version_oldest=1,
                version_newest=1,
                captured_ms=0,
                score=1,
                teacher_logprobs=pack(-rng.uniform(8.0, 14.0, len(answer)), "float32"),
            )
        )
    return made


def num_tokens(made: list[Sample]) -> int:
    """Prompt and answer tokens of all samples."""
    return sum(sample.prompt_ids.shape[0] + sample.response_ids.shape[0] for sample in made)
