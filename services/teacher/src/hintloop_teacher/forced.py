"""Forced scores: what a dialect reads from an engine, checked and packed. Missing is missing; nothing is filled in.

Legend: T = response tokens, K = candidates. Log-probabilities are in nats at temperature 1; entry t belongs to
response token t, given everything before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hintloop_teacher.errors import MisalignedError, MissingError

#: A log-softmax in float32 may end this far above zero; such a value is kept as it is. More is an error.
POSITIVE_NOISE = 1e-6
#: vLLM writes this where a log-probability is missing or minus infinity.
PLACEHOLDER = -9999.0
#: Two readings of one forward pass differ by rounding alone.
SAME_ROW_TOLERANCE = 1e-3
#: How far the K candidates' mass may exceed 1 by rounding.
MASS_NOISE = 1e-3
#: A tail lighter than float32 can tell from none has this log-mass; it stands for "at most 2^-24".
EMPTY_TAIL = math.log(2.0**-24)
_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class RawScores:
    """As read from the engine, one entry a response token: the id it says it scored, its value, its candidates.

    ``candidates`` rows are ``(id, log-probability)``, most likely first; ``None`` when none were asked.
    ``first_entry`` is what the engine gave for the first token of all, which has nothing before it.
    """

    token_ids: Sequence[int | None]
    logprobs: Sequence[float | None]
    candidates: Sequence[Sequence[tuple[int, float | None]]] | None = None
    first_entry: object = None


@dataclass(frozen=True, slots=True)
class ForcedScores:
    """``logprobs`` float32 [T]; with candidates ``topk_ids`` int32 [T, K], ``topk_logprobs`` float32 [T, K] and
    ``tail_logprobs`` float32 [T], the log-mass outside the K candidates. The engine's own candidates come most likely
    first, given ones in the order given."""

    logprobs: NDArray[np.float32]
    topk_ids: NDArray[np.int32] | None = None
    topk_logprobs: NDArray[np.float32] | None = None
    tail_logprobs: NDArray[np.float32] | None = None


def missing(value: object) -> str | None:
    """Why ``value`` is no log-probability, or ``None`` when it is one."""
    if value is None:
        return "null"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"no number ({value!r})"
    if not -_LARGEST <= value <= _LARGEST:
        return str(value) if isinstance(value, float) else "no float"
    if value > POSITIVE_NOISE:
        return f"positive ({value})"
    if value <= PLACEHOLDER:
        return f"a placeholder ({value})"
    return None


def check_scores(raw: RawScores, response_ids: Sequence[int], top_k: int, num_ids: int = 2**31) -> ForcedScores:
    """Check what an engine gave against the response. ``num_ids``: how many ids the student has.

    Raises:
        MisalignedError: another number of tokens, or other tokens, were scored; a candidate is none of the student's.
        MissingError: a log-probability or a candidate is missing.
    """
    _check_alignment(raw, response_ids)
    for position, value in enumerate(raw.logprobs):
        if problem := missing(value):
            raise MissingError(f"the log-probability of response token {position} is {problem}")
    logprobs = np.asarray(raw.logprobs, dtype=np.float64).astype(np.float32)
    if top_k == 0:
        return ForcedScores(logprobs)
    ids, values = _candidates(raw, len(response_ids), top_k, num_ids)
    _check_rows(np.asarray(raw.logprobs, dtype=np.float64), response_ids, ids, values)
    return ForcedScores(logprobs, ids, values.astype(np.float32), tail_logprobs(values))


def with_candidates(
    logprobs_T: NDArray[np.float32], candidate_ids: Sequence[Sequence[int]], rows: Sequence[Sequence[float | None]]
) -> ForcedScores:
    """Scores of given candidates beside those of the tokens.

    Raises:
        MissingError: a candidate's log-probability is missing, or their mass is above 1.
    """
    if [len(row) for row in rows] != [len(row) for row in candidate_ids]:
        raise MissingError("the engine gave another number of candidates than was asked")
    for position, row in enumerate(rows):
        if problem := next((found for value in row if (found := missing(value))), None):
            raise MissingError(f"a candidate's log-probability at response token {position} is {problem}")
    ids_TK, values_TK = np.asarray(candidate_ids, dtype=np.int32), np.asarray(rows, dtype=np.float64)
    return ForcedScores(logprobs_T, ids_TK, values_TK.astype(np.float32), tail_logprobs(values_TK))


def joined(parts: Sequence[ForcedScores]) -> ForcedScores:
    """Scores of consecutive parts of one answer as the answer's."""
    if len(parts) == 1:
        return parts[0]

    def along(name: str) -> NDArray[Any] | None:
        arrays = [getattr(part, name) for part in parts]
        return None if any(array is None for array in arrays) else np.concatenate(arrays)

    logprobs = np.concatenate([part.logprobs for part in parts])
    return ForcedScores(logprobs, along("topk_ids"), along("topk_logprobs"), along("tail_logprobs"))


def _check_alignment(raw: RawScores, response_ids: Sequence[int]) -> None:
    if len(raw.token_ids) != len(response_ids) or len(raw.logprobs) != len(response_ids):
        raise MisalignedError(
            f"the response has {len(response_ids)} tokens, the engine scored {len(raw.token_ids)} "
            f"and gave {len(raw.logprobs)} log-probabilities"
        )
    for position, (scored, expected) in enumerate(zip(raw.token_ids, response_ids, strict=True)):
        if scored != expected:
            raise MisalignedError(f"response token {position} is {expected}, the engine scored {scored}")


def _candidates(
    raw: RawScores, num_tokens: int, top_k: int, num_ids: int
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    rows = raw.candidates
    if rows is None or len(rows) != num_tokens:
        raise MissingError(f"{num_tokens} rows of candidates were asked, the engine gave {len(rows or ())}")
    for position, row in enumerate(rows):
        if len({token for token, _ in row}) != top_k or len(row) != top_k:
            raise MissingError(f"response token {position} has {len(row)} candidates, {top_k} distinct ones were asked")
        problem = next((found for _, value in row if (found := missing(value))), None)
        if problem:
            raise MissingError(f"a candidate's log-probability at response token {position} is {problem}")
        if outside := [token for token, _ in row if not 0 <= token < num_ids]:
            raise MisalignedError(f"candidate {outside[0]} at response token {position} is none of {num_ids} ids")
    ids_TK = np.asarray([[token for token, _ in row] for row in rows], dtype=np.int32)
    logprobs_TK = np.asarray([[value for _, value in row] for row in rows], dtype=np.float64)
    order_TK = np.argsort(-logprobs_TK, axis=1, kind="stable")
    return np.take_along_axis(ids_TK, order_TK, axis=1), np.take_along_axis(logprobs_TK, order_TK, axis=1)


def _check_rows(
    logprobs_T: NDArray[np.float64],
    response_ids: Sequence[int],
    ids_TK: NDArray[np.int32],
    values_TK: NDArray[np.float64],
) -> None:
    """A token that is a candidate has the same value there; one that is none is not above the last of them.

    Raises:
        MisalignedError: the candidates are not of the place of their token.
    """
    among_TK = ids_TK == np.asarray(response_ids, dtype=np.int64)[:, None]
    differs_T = (among_TK & (np.abs(values_TK - logprobs_T[:, None]) > SAME_ROW_TOLERANCE)).any(axis=1)
    above_T = ~among_TK.any(axis=1) & (logprobs_T > values_TK[:, -1] + SAME_ROW_TOLERANCE)
    for wrong_T, words in (
        (differs_T, "has another log-probability among the candidates"),
        (above_T, "is more likely than a candidate and none itself"),
    ):
        if wrong_T.any():
            raise MisalignedError(f"response token {int(wrong_T.argmax())} {words}: they are of different places")


def tail_logprobs(topk_logprobs_TK: NDArray[np.float64]) -> NDArray[np.float32]:
    """log(1 - exp(logsumexp(candidates))), float64 inside, float32 [T] out; never below :data:`EMPTY_TAIL`.

    Raises:
        MissingError: the candidates' mass is above 1 by more than rounding.
    """
    peak_T = topk_logprobs_TK.max(axis=1, keepdims=True)
    logmass_T = (peak_T + np.log(np.exp(topk_logprobs_TK - peak_T).sum(axis=1, keepdims=True)))[:, 0]
    worst = float(np.expm1(logmass_T.max())) if logmass_T.size else 0.0
    if worst > MASS_NOISE:
        raise MissingError(f"the candidates' mass is {1 + worst:.4f}; they are no log-probabilities at temperature 1")
    # expm1 keeps the digits of a light tail, where 1 - exp() would cancel.
    rest_T = np.maximum(-np.expm1(np.minimum(logmass_T, 0.0)), np.exp(EMPTY_TAIL))
    tail_T: NDArray[np.float32] = np.log(rest_T).astype(np.float32)
    return tail_T
