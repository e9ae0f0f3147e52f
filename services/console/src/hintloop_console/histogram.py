"""Bins for the advantages of single tokens. Owns edges and shares; where they are kept is `store`'s.

Legend: T = response tokens, B = bins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Nats; the first and the last bin hold everything beyond.
LIMIT, WIDTH = 12.0, 0.2
NUM_BINS = round(2 * LIMIT / WIDTH)
EDGES = [round(-LIMIT + WIDTH * index, 6) for index in range(NUM_BINS + 1)]
#: An advantage beyond this is a token that teacher or student thinks all but impossible.
FAR = 10.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Advantages counted by bin: ``counts`` is int64 ``[B]``; the others are numbers of tokens."""

    counts: NDArray[np.int64]
    tokens: int
    positive: int
    negative: int
    far: int


def count(advantages_T: NDArray[np.float32]) -> Counted:
    """Count the advantages of one answer; such as are no numbers are left out."""
    values = advantages_T[np.isfinite(advantages_T)].astype(np.float64)
    places = np.clip(np.floor((values + LIMIT) / WIDTH).astype(np.int64), 0, NUM_BINS - 1)
    counts = np.bincount(places, minlength=NUM_BINS)
    positive, negative = int((values > 0).sum()), int((values < 0).sum())
    return Counted(counts, int(values.size), positive, negative, int((np.abs(values) > FAR).sum()))


def packed(counted: Counted) -> bytes:
    """Counts as uint32, little-endian, ``4 B`` bytes."""
    return counted.counts.astype("<u4").tobytes()


def added(rows: Iterable[tuple[bytes, int, int, int, int]]) -> Counted:
    """The sum of rows of (packed counts, tokens, positive, negative, far)."""
    sums, counts = [0, 0, 0, 0], np.zeros(NUM_BINS, dtype=np.int64)
    for data, *numbers in rows:
        found = np.frombuffer(data, dtype="<u4")
        if found.size == NUM_BINS:  # counted by other bins, it is left out
            counts += found
            sums = [total + number for total, number in zip(sums, numbers, strict=True)]
    return Counted(counts, *sums)
