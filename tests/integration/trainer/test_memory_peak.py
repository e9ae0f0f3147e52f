"""The estimate of memory against the peak of a real process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import students

RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"packing": False}, RECOMPUTED])
@pytest.mark.parametrize("vocab_size", [4096, 65536])
def test_the_peak_is_within_a_quarter_of_the_estimate(tmp_path: Path, vocab_size: int, keys: dict[str, Any]) -> None:
    model = students.tiny_model(
        "llama",
        tied=vocab_size > 10_000,
        vocab_size=vocab_size,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=1024,
    )
    model.save_pretrained(tmp_path)
    script = Path(__file__).with_name("memory_peak.py")
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path), "2", "384", json.dumps(keys)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environ, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["measured"] == pytest.approx(found["estimated"], rel=0.25)
