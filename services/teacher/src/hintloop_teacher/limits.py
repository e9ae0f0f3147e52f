"""What a PRM engine can do beyond scoring at all, found by asking it: most candidates, first entry, temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hintloop_contract.errors import DependencyError

from hintloop_teacher.dialects.base import Question
from hintloop_teacher.errors import RefusedError, TeachError, UnsupportedError
from hintloop_teacher.scoring import ForcedScorer

#: More candidates than this are not asked for.
MOST_CANDIDATES = 1024
#: Same tokens scored twice may differ this much (bfloat16 in another batch); random tokens differ by nats.
REPEAT_TOLERANCE = 0.3
OTHER_TEMPERATURE = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """``max_top_k``: most candidates a token, up to :data:`MOST_CANDIDATES`. The others are said in words."""

    max_top_k: int
    first_entry: str
    temperature: str
    given_candidates: str
    chunks: str


def probe_ids(size: int, count: int) -> list[int]:
    """``count`` ids spread over a vocabulary of ``size``, always the same."""
    return [(7919 * i + 101) % size for i in range(1, count + 1)]


async def find_limits(scorer: ForcedScorer, known_top_k: int) -> Limits:
    """Ask for the limits; ``known_top_k`` candidates were given before.

    Raises:
        DependencyError: the engine is away.
    """
    return Limits(
        max_top_k=await _most_candidates(scorer, known_top_k),
        first_entry=await _first_entry(scorer),
        temperature=await _temperature(scorer),
        given_candidates=await _given_candidates(scorer),
        chunks=(
            f"answers of more than {scorer.chunk_tokens} tokens (prm.score_chunk_tokens) take several requests"
            if scorer.dialect.begins_late
            else "one request an answer: this kind of engine answers with everything before a chunk, too"
        ),
    )


async def _most_candidates(scorer: ForcedScorer, known: int) -> int:
    highest = min(MOST_CANDIDATES, scorer.vocabulary_size)
    if await _gives(scorer, highest, known):
        return highest
    given, refused = known, highest
    while refused - given > 1:
        middle = (given + refused) // 2
        if await _gives(scorer, middle, known):
            given = middle
        else:
            refused = middle
    return given


async def _gives(scorer: ForcedScorer, top_k: int, known: int) -> bool:
    """Whether the engine gives ``top_k`` candidates; ``known`` it gave before."""
    ids = probe_ids(scorer.vocabulary_size, 3)
    try:
        await scorer.score(ids[:2], ids[2:], top_k)
    except (RefusedError, TeachError, UnsupportedError):
        return False
    except DependencyError:
        # Some engines answer 500 to what is too much for them. One that is away fails this, too.
        await scorer.score(ids[:2], ids[2:], known)
        return False
    return True


async def _raw(scorer: ForcedScorer, temperature: float) -> Any:
    ids = probe_ids(scorer.vocabulary_size, 6)
    return await scorer.dialect.score(scorer.facts.model, Question(ids[:1], ids[1:], temperature=temperature))


async def _first_entry(scorer: ForcedScorer) -> str:
    entry = (await _raw(scorer, 1.0)).first_entry
    return "null" if entry is None else f"{entry!r}, a value of no token; it is never read"


async def _temperature(scorer: ForcedScorer) -> str:
    try:
        plain, other = await _raw(scorer, 1.0), await _raw(scorer, OTHER_TEMPERATURE)
        difference = np.abs(np.asarray(plain.logprobs, np.float64) - np.asarray(other.logprobs, np.float64)).max()
    except (RefusedError, TeachError) as error:
        return f"1 is sent; another one is not taken: {error!s:.120}"
    if difference <= REPEAT_TOLERANCE:
        return "scores are at 1, whatever the request's temperature"
    return "scores follow the request's temperature; 1 is sent"


async def _given_candidates(scorer: ForcedScorer) -> str:
    """How; or why not, and then the scorer refuses them from now on."""
    ids = probe_ids(scorer.vocabulary_size, 6)
    try:
        words = await scorer.dialect.find_candidates(scorer.facts.model, ids)
        # Each token itself is among its candidates: what is said of it twice must be the same.
        rows = [[ids[0], token] for token in ids[3:]]
        scores = await scorer.score(ids[:3], ids[3:], candidate_ids=rows)
    except (UnsupportedError, RefusedError, TeachError) as error:
        scorer.no_candidates = str(error)
    else:
        assert scores.topk_logprobs is not None
        if float(np.abs(scores.topk_logprobs[:, 1] - scores.logprobs).max()) <= REPEAT_TOLERANCE:
            return words
        scorer.no_candidates = "a token scores otherwise as a given candidate than by itself"
    return f"refused: {scorer.no_candidates}"
