"""The random generators of a rank: saved by every rank, and restored under the layout that they were saved under."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, model_parallel_cuda_manual_seed

from hintloop_trainer.megatron import cpu
from hintloop_trainer.megatron.parallel import Layout

_KEY = "generators"


def sizes(layout: Layout) -> list[int]:
    """What has to be equal for one rank's generators to be of use to the same rank of a later run."""
    return [layout.world_size, layout.tp_size, layout.pp_size, layout.cp_size, layout.ep_size]


def states() -> dict[str, Any]:
    """Where every generator of this rank is."""
    found = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "tracker": get_cuda_rng_tracker().get_states(),
    }
    if cpu.has_cuda():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def sharded(layout: Layout) -> ShardedObject:
    """This rank's generators, as a checkpoint takes them."""
    return ShardedObject(_KEY, states(), (layout.world_size,), (layout.rank,), replica_id=0)


def restore(saved: dict[str, Any]) -> None:
    """Go on where :func:`states` was."""
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    torch.set_rng_state(saved["torch"])
    get_cuda_rng_tracker().set_states(saved["tracker"])
    if "cuda" in saved and cpu.has_cuda():
        torch.cuda.set_rng_state(saved["cuda"])


def begin_anew(seed: int) -> None:
    """Seed every generator: under another layout the saved ones are no rank's own."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed, inference_rng_tracker=not cpu.has_cuda(), force_reset_rng=True)
