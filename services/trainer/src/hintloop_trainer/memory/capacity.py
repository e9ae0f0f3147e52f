"""How much memory there is for what the estimate asks: the device's, the host's, and a container's bound on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from hintloop_trainer.memory.plan import Plan

#: Where Linux says what a container may take and has taken (cgroup v2, then v1).
CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory.stat")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.stat"),
    ),
)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bytes that are free now, for all of this host's processes of the trainer and for one device."""

    host: float
    device: float | None
    """``None`` on a CPU."""
    processes: int
    """Of the trainer on this host."""


def measure(plan: Plan) -> Capacity:
    """What is free here, with what this process holds already counted as free."""
    mine = float(psutil.Process().memory_info().rss)
    host = float(psutil.virtual_memory().available)
    for limit, usage, statistics in CGROUPS:
        bound = container_room(limit, usage, statistics)
        if bound is not None:
            host = min(host, bound)
    device = None
    if plan.device == "cuda" and torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        device = float(free + torch.cuda.memory_reserved())
    return Capacity(host + mine, device, int(os.environ.get("LOCAL_WORLD_SIZE", plan.world_size)))


def container_room(limit: Path, usage: Path, statistics: Path) -> float | None:
    """What a container may take yet, with its file cache counted as free; ``None`` where nothing bounds it."""
    try:
        bound, used = limit.read_text().strip(), int(usage.read_text())
        lines = dict(line.split() for line in statistics.read_text().splitlines() if len(line.split()) == 2)
    except (OSError, ValueError):
        return None
    if bound == "max" or int(bound) >= 2**60:
        return None
    return float(max(0, int(bound) - used + int(lines.get("inactive_file", 0))))
