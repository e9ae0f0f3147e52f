"""What memory the trainer's processes take: the largest of all ranks, in bytes."""

from __future__ import annotations

import resource

import psutil
import torch
import torch.distributed as dist

from hintloop_trainer.megatron import cpu


def local() -> dict[str, float]:
    """This process's memory, in bytes; CUDA's peaks are those since the last call.

    ``memory_rss``: held now; ``memory_rss_peak``: the most so far; ``memory_cuda_allocated_peak`` and
    ``memory_cuda_reserved_peak``: tensors, and what the allocator took from the device for them.
    """
    held = float(psutil.Process().memory_info().rss)
    # The kernel brings its record of the peak up to date only now and then.
    peak = max(held, 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    found = {"memory_rss": held, "memory_rss_peak": peak}
    if cpu.has_cuda():
        found["memory_cuda_allocated_peak"] = float(torch.cuda.max_memory_allocated())
        found["memory_cuda_reserved_peak"] = float(torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()
    return found


def largest() -> dict[str, float]:
    """Of every figure the largest over all ranks. Collective."""
    mine = local()
    values = torch.tensor(list(mine.values()), dtype=torch.float64, device=cpu.device())
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return dict(zip(mine, values.tolist(), strict=True))
