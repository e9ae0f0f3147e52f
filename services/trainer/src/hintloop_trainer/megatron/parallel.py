"""Process groups: from torchrun's environment or for one process, over NCCL or gloo."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from hintloop_trainer.errors import ModelError
from hintloop_trainer.megatron import cpu


@dataclass(frozen=True, slots=True)
class Layout:
    """Where this process stands: ranks and sizes of the data, tensor and pipeline groups."""

    rank: int
    world_size: int
    dp_rank: int
    dp_size: int
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int

    @property
    def first_stage(self) -> bool:
        """Whether this process holds the embedding."""
        return self.pp_rank == 0

    @property
    def last_stage(self) -> bool:
        """Whether this process holds the output head."""
        return self.pp_rank == self.pp_size - 1


def free_port() -> int:
    """A TCP port of this host that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(tensor: int, pipeline: int, seed: int, timeout_s: float = 1800.0) -> Layout:
    """Join the process group and Megatron's model-parallel groups, and seed the generators.

    Outside torchrun, this process is the whole world.

    Raises:
        ModelError: the number of processes is not a multiple of tensor x pipeline ranks.
    """
    alone = "RANK" not in os.environ
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world % (tensor * pipeline):
        raise ModelError(
            f"{world} process(es) cannot hold training.tensor_model_parallel_size {tensor} x "
            f"pipeline_model_parallel_size {pipeline}; start torchrun with a multiple of {tensor * pipeline}"
        )
    if cpu.has_cuda():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    address = f"tcp://127.0.0.1:{free_port()}" if alone else "env://"
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cpu.has_cuda() else "gloo",
        init_method=address,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout_s),
    )
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline)
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed, inference_rng_tracker=not cpu.has_cuda(), force_reset_rng=True)
    return layout()


def layout() -> Layout:
    """The layout after :func:`start`."""
    return Layout(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        dp_rank=parallel_state.get_data_parallel_rank(),
        dp_size=parallel_state.get_data_parallel_world_size(),
        tp_rank=parallel_state.get_tensor_model_parallel_rank(),
        tp_size=parallel_state.get_tensor_model_parallel_world_size(),
        pp_rank=parallel_state.get_pipeline_model_parallel_rank(),
        pp_size=parallel_state.get_pipeline_model_parallel_world_size(),
    )


def stop() -> None:
    """Leave the groups; waits for the other ranks, so that no one is cut off in a collective."""
    if not dist.is_initialized():
        return
    dist.barrier()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def sum_over_data(values: torch.Tensor) -> torch.Tensor:
    """Sum a tensor of this rank over the data-parallel group."""
    dist.all_reduce(values, group=parallel_state.get_data_parallel_group())
    return values
