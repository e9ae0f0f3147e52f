"""How far two engines of the same weights may differ in a log-probability, by the dtypes in which they compute."""

from __future__ import annotations

#: Largest mean and largest single |difference| in nats, by dtype; the finest dtype first.
TOLERANCES = {"float32": (1e-3, 1e-2), "float16": (1e-2, 0.1), "bfloat16": (0.05, 0.75)}
_COARSENESS = {dtype: index for index, dtype in enumerate(TOLERANCES)}


def tolerances(*dtypes: str) -> tuple[float, float]:
    """Largest mean and largest single difference that equal weights may show: those of the coarsest of ``dtypes``."""
    return TOLERANCES[max(dtypes, key=_COARSENESS.__getitem__)]
