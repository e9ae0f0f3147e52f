"""How much a step computed, over all ranks, and what share of the devices' peak that was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from hintloop_contract.config.schema import Config
from megatron.core import parallel_state

from hintloop_trainer.batch import MicroBatch
from hintloop_trainer.megatron import cpu
from hintloop_trainer.megatron.model import Architecture
from hintloop_trainer.metrics import flops, memory_use


@dataclass(frozen=True, slots=True)
class Work:
    """Sums over data-parallel ranks."""

    num_read: int
    """Prompt and response tokens."""
    num_positions: int
    """Positions that went through the layers."""
    num_padding: int
    """Of them, those that stand for no token."""
    num_shared: int
    """Positions that did not: other samples' sequences hold them already."""
    flops: float
    """Of the forward and backward passes (:mod:`flops`)."""
    mfu: float | None
    """``flops`` a second as a share of all devices' peak; ``None`` where the peak is not known."""
    memory: dict[str, float]
    """Bytes; the largest of all ranks (:mod:`memory_use`)."""

    @property
    def padding_share(self) -> float:
        """Padding's share of the positions."""
        return self.num_padding / self.num_positions if self.num_positions else 0.0

    @property
    def shared_share(self) -> float:
        """The share of all samples' positions that was computed within another sample's sequence."""
        needed = self.num_positions - self.num_padding + self.num_shared
        return self.num_shared / needed if needed else 0.0


class Meter:
    """Measures steps of one learner; called on all ranks alike."""

    def __init__(self, config: Config, arch: Architecture) -> None:
        """Look up the peak of this rank's device, unless `metrics.peak_tflops` gives it."""
        self._arch = arch
        self._frozen = config.lora.enabled
        self._peak = config.metrics.peak_tflops
        if self._peak is None and cpu.has_cuda():
            self._peak = flops.peak_tflops(torch.cuda.get_device_name(), config.model.dtype)

    def measure(self, batches: Sequence[MicroBatch], seconds: float) -> Work:
        """What a step with these micro-batches of this rank took. Collective over all ranks."""
        examples = [example for batch in batches for example in batch.examples]
        lengths = [length for batch in batches for length in batch.lengths]
        positions = sum(batch.input_ids_BS.numel() for batch in batches)
        trained = sum(batch.num_trained for batch in batches)
        mine = [
            sum(example.num_tokens for example in examples),
            positions,
            positions - sum(lengths),
            sum(example.num_tokens - 1 for example in examples) - sum(lengths),
            flops.step_flops(self._arch, lengths, trained, frozen=self._frozen),
        ]
        sums = torch.tensor(mine, dtype=torch.float64, device=cpu.device())
        dist.all_reduce(sums, group=parallel_state.get_data_parallel_group())
        read, computed, padded, shared, operations = sums.tolist()
        mfu = None
        if self._peak is not None and seconds > 0:
            mfu = operations / (seconds * dist.get_world_size() * self._peak * 1e12)
        memory = memory_use.largest()
        return Work(int(read), int(computed), int(padded), int(shared), operations, mfu, memory)
