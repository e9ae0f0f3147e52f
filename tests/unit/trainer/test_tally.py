"""Sums and percentiles over micro-batches and ranks against numpy over all values at once."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hintloop_trainer.tally import PERCENTILES, Tally


def test_percentiles_and_shares_are_those_of_all_values_together() -> None:
    values = np.random.default_rng(0).normal(0.0, 6.0, 1000).astype(np.float32)
    parts = np.split(values, [3, 400, 401])
    tallies = []
    for part in parts:
        tally = Tally()
        tally.add("advantage", torch.from_numpy(part))
        # As they come from other ranks.
        tallies.append(pickle.loads(pickle.dumps(tally)))
    merged = Tally().merge(tallies)

    found = merged.percentiles("advantage")
    assert list(found) == list(PERCENTILES)
    assert list(found.values()) == pytest.approx(np.percentile(values, PERCENTILES).tolist())
    assert merged.share_beyond("advantage", 10.0) == pytest.approx(np.mean(np.abs(values) > 10.0))
    moments = merged.of("advantage")
    assert (moments.count, moments.positive) == (1000, int((values > 0).sum()))
    assert moments.mean == pytest.approx(values.mean(), abs=1e-6)
    assert moments.std == pytest.approx(values.std(), rel=1e-6)
    assert moments.largest == pytest.approx(np.abs(values).max())


def test_only_named_values_are_kept_and_nothing_gives_nothing() -> None:
    tally = Tally()
    tally.add("entropy", torch.ones(5))
    tally.add("advantage", torch.ones(0))
    assert tally.values == {}
    assert tally.percentiles("advantage") == {}
    assert tally.share_beyond("advantage", 10.0) == 0.0
