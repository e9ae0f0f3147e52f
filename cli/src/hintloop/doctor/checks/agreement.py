"""Whether distributions are at the temperature that they are taken for, and read the whole prompt.

A distribution at another temperature is the same one with its log-probabilities' differences scaled: the slope of one
set of differences over the other is the ratio of temperatures, whatever the weights. Two models that differ scatter;
then nothing is said.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import DependencyError, HintloopError

from hintloop.doctor.checks.asking import PolicyEngine
from hintloop.doctor.finding import Finding, fail, ok, skipped, warn
from hintloop.doctor.look import Look

if TYPE_CHECKING:
    from hintloop_teacher.scoring import ForcedScorer

#: How far from the expected slope it may be, as a ratio; temperatures in use lie further apart.
SLOPE_WITHIN = 0.08
#: Share of the variance that the slope has to explain before anything is said.
FIT = 0.97
#: Other temperature at which a policy engine is asked.
OTHER_TEMPERATURE = 0.5
#: Candidates a place that both engines are asked for.
NUM_CANDIDATES = 20
#: Most tokens of the long prompt; on two cores a small model reads them in some seconds.
LONG_PROMPT, SHORTEST_PROMPT = 768, 96
#: The part of it, from its beginning, that is changed, and the tokens that are scored behind it.
CHANGED_SHARE, NUM_SCORED = 8, 8
#: Tokens by which a context may be shorter than model.max_seq_len: engines keep some for what they generate.
SLACK = 16


def slope(pairs: Iterable[tuple[Mapping[int, float], Mapping[int, float]]]) -> tuple[float, float] | None:
    """Slope of the second set of log-probabilities over the first within each place, and the share of the variance
    that it explains; ``None`` when there is too little to tell."""
    ones: list[float] = []
    others: list[float] = []
    for one, other in pairs:
        common = sorted(set(one) & set(other))
        if len(common) < 3:
            continue
        x, y = np.asarray([one[token] for token in common]), np.asarray([other[token] for token in common])
        finite = np.isfinite(x) & np.isfinite(y)
        if finite.sum() >= 3:
            ones += list(x[finite] - x[finite].mean())
            others += list(y[finite] - y[finite].mean())
    x, y = np.asarray(ones), np.asarray(others)
    if len(x) < 5 or not (x**2).sum() or not (y**2).sum():
        return None
    ratio = float((x * y).sum() / (x**2).sum())
    return ratio, float((x * y).sum() ** 2 / ((x**2).sum() * (y**2).sum()))


async def sampling(look: Look, url: str) -> Finding:
    """Whether a policy engine samples at the temperature that a request asks for."""
    name = "sampling temperature"
    space = look.spaces.get(url, "")
    if space == "raw":
        return skipped(name, f"{url} gives raw log-probabilities, which do not show it")
    engine = PolicyEngine(look, url)
    assert look.teacher is not None
    try:
        # A prompt that nobody sent before: nothing of it is in a cache.
        ids = look.teacher.engine.vocabulary.encode(f"At {time.time():.6f} the ship left the harbour, and the captain")
        plain, other = await engine.next_token(ids, 1.0), await engine.next_token(ids, OTHER_TEMPERATURE)
    except (HintloopError, KeyError, IndexError, TypeError, ValueError) as error:
        return skipped(name, f"{url} was not asked: {type(error).__name__}: {error!s:.160}")
    found = slope([(plain.logprobs, other.logprobs)])
    if found is None or found[1] < FIT:
        return skipped(name, f"{url}: the alternatives are too few to tell")
    expected = 1 / OTHER_TEMPERATURE
    seen = f"{url}: asked at {OTHER_TEMPERATURE:g}, it samples at {1 / found[0]:.2f}"
    if abs(found[0] / expected - 1) > SLOPE_WITHIN:
        return fail(name, seen, Cause.TEMPERATURE_DIFFERS)
    return ok(name, seen)


async def between(look: Look) -> Finding:
    """Whether PRM engine and policy engine are at one temperature, on the same unhinted tokens."""
    from hintloop_teacher.errors import MisalignedError
    from hintloop_teacher.vocabulary import PROBE_TEXT

    name = "temperature"
    assert look.teacher is not None
    ids = look.teacher.engine.vocabulary.encode(PROBE_TEXT)[:64]
    try:
        ours = await _rows(await PolicyEngine(look, look.config.engine_urls[0].rstrip("/")).scorer(), ids)
    except (HintloopError, KeyError, ValueError) as error:
        return skipped(name, f"not compared: {error!s:.160}")
    try:
        theirs = await _rows(look.teacher.engine.scorer, ids)
    except MisalignedError as error:
        return fail(name, str(error), Cause.PRM_SHIFTED)
    except HintloopError as error:
        return skipped(name, f"not compared: {error!s:.160}")
    found = slope(zip(ours, theirs, strict=True))
    if found is None or found[1] < FIT:
        fit = "nothing" if found is None else f"{found[1]:.0%}"
        return ok(name, f"teacher and student are other models ({fit} of the differences agree): not compared")
    seen = f"the teacher's log-probabilities are at {1 / found[0]:.2f} times the student's temperature"
    if abs(found[0] - 1) > SLOPE_WITHIN:
        return fail(name, seen, Cause.TEMPERATURE_DIFFERS)
    return ok(name, seen)


async def _rows(scorer: ForcedScorer, ids: Sequence[int]) -> list[dict[int, float]]:
    scores = await scorer.score(ids[:1], ids[1:], NUM_CANDIDATES)
    assert scores.topk_ids is not None and scores.topk_logprobs is not None
    return [
        {int(token): float(value) for token, value in zip(tokens, values, strict=True)}
        for tokens, values in zip(scores.topk_ids, scores.topk_logprobs, strict=True)
    ]


async def context(look: Look) -> Finding:
    """Whether the teacher reads all of a long prompt."""
    name = "teacher's context"
    assert look.teacher is not None
    scorer, longest = look.teacher.engine.scorer, look.config.model.max_seq_len
    room = scorer.facts.max_input_len
    length = min(longest, LONG_PROMPT, room - SLACK if room else LONG_PROMPT)
    short = room is not None and room + SLACK < longest
    if length < SHORTEST_PROMPT:
        if short:
            return fail(name, f"it takes {room} tokens, model.max_seq_len is {longest}", Cause.TEACHER_CONTEXT_SHORT)
        return skipped(name, f"model.max_seq_len is {longest}: no prompt is long")
    size = scorer.vocabulary_size
    ids = [(7919 * place + 101) % size for place in range(1, length + 1)]
    first, last = length // CHANGED_SHARE, ids[-NUM_SCORED:]

    async def scored(begin: int, end: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        changed = [*ids[:begin], *((token + 13) % size for token in ids[begin:end]), *ids[end:-NUM_SCORED]]
        return (await scorer.score(changed, last)).logprobs

    try:
        plain = await scored(0, 0)
        far = float(np.abs(plain - await scored(0, first)).max())
        # An engine of which nothing reaches further than some tokens reads no less of long prompts than of short ones.
        near = far or float(np.abs(plain - await scored(length - 4 * NUM_SCORED, length - 2 * NUM_SCORED)).max())
    except DependencyError:
        raise
    except HintloopError as error:
        seen = f"a prompt of {length} tokens (model.max_seq_len is {longest}): {error!s:.200}"
        return fail(name, seen, Cause.TEACHER_CONTEXT_SHORT)
    if far == 0 and near > 0:
        seen = f"of {length} tokens the first {first} change nothing in the scores of the last: they are not read"
        return fail(name, seen, Cause.TEACHER_CONTEXT_SHORT)
    if short:
        seen = f"it takes {room} tokens, model.max_seq_len is {longest}"
        return warn(name, seen, Cause.TEACHER_CONTEXT_SHORT)
    return ok(name, f"reads all of {length} tokens{f', takes {room}' if room else ''}")
