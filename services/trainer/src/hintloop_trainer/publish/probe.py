"""The fixed sequence on which engine and trainer are compared after every update."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

#: Ordinary prose of several kinds, so that many rows of the embedding and head take part.
TEXT = (
    "The harbour was quiet at dawn. Two boats left before the tide turned, and by noon 47 crates of fish lay on "
    "the quay; def price(n): return n * 3.5 — who buys them, and why so early?"
)
#: Tokens of the sequence when there is no tokenizer file to make it from.
NUM_RANDOM = 48


def probe_ids(tokenizer_dir: Path, vocab_size: int) -> list[int]:
    """Token ids of the probe: :data:`TEXT` under the model's tokenizer, else fixed ids over the vocabulary."""
    file = tokenizer_dir / "tokenizer.json"
    if file.is_file():
        ids: list[int] = Tokenizer.from_file(str(file)).encode(TEXT, add_special_tokens=False).ids
        if len(ids) > 1 and max(ids) < vocab_size:
            return ids
    return [int(token) for token in np.random.default_rng(0).integers(0, vocab_size, NUM_RANDOM)]
