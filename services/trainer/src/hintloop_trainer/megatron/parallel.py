"""Process groups: from torchrun's environment or for one process, over NCCL or gloo."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from hintloop_contract.config.layout import LayoutKeys
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from hintloop_trainer.errors import ModelError
from hintloop_trainer.megatron import cpu


@dataclass(frozen=True, slots=True)
class Layout:
    """Where this process stands: ranks and sizes of its groups.

    Context-parallel ranks share the positions of one data-parallel share's sequences; expert-parallel ranks, of
    whatever tensor, context or data group, share the experts of a mixture.
    """

    rank: int
    world_size: int
    dp_rank: int
    dp_size: int
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    cp_rank: int = 0
    cp_size: int = 1
    ep_rank: int = 0
    ep_size: int = 1
    sequence_parallel: bool = False

    @property
    def first_stage(self) -> bool:
        """Whether this process holds the embedding."""
        return self.pp_rank == 0

    @property
    def last_stage(self) -> bool:
        """Whether this process holds the output head."""
        return self.pp_rank == self.pp_size - 1

    @property
    def reports(self) -> bool:
        """Whether this process speaks for its data-parallel share: of the ranks with the same results, just one."""
        return self.last_stage and self.tp_rank == 0 and self.cp_rank == 0


def free_port() -> int:
    """A TCP port of this host that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


#: What torchrun gives every process.
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def launched_as() -> tuple[int, int, int] | None:
    """``(rank, world size, local rank)`` as torchrun says; ``None`` outside it.

    Raises:
        ModelError: the environment names only some of what torchrun sets, or contradicts itself.
    """
    if "RANK" not in os.environ and os.environ.get("WORLD_SIZE", "1") == "1":
        return None
    missing = [name for name in LAUNCHED if name not in os.environ]
    if missing:
        raise ModelError(
            f"the environment has {', '.join(name for name in LAUNCHED if name in os.environ)} but not "
            f"{', '.join(missing)}; start every process by torchrun, or unset them all for a single process"
        )
    numbers = []
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        if not os.environ[name].isdecimal():
            raise ModelError(f"{name} is {os.environ[name]!r} and no number; start every process by torchrun")
        numbers.append(int(os.environ[name]))
    rank, world, local = numbers
    if rank >= world:
        raise ModelError(f"RANK {rank} is none of the WORLD_SIZE {world} ranks, which count from 0; use torchrun")
    return rank, world, local


def check_sizes(world: int, tensor: int, pipeline: int, context: int = 1, expert: int = 1) -> None:
    """Refuse sizes that do not divide the number of processes.

    Raises:
        ModelError: names the key, its value, and a number of processes that would do.
    """
    whole = tensor * pipeline * context
    if world % whole:
        raise ModelError(
            f"{world} process(es) cannot hold training.tensor_model_parallel_size {tensor} x "
            f"pipeline_model_parallel_size {pipeline} x context_parallel_size {context}; start torchrun with a "
            f"multiple of {whole}"
        )
    if (world // pipeline) % expert:
        fitting = pipeline * math.lcm(tensor * context, expert)
        raise ModelError(
            f"training.expert_model_parallel_size {expert} does not divide the {world // pipeline} rank(s) of each of "
            f"{pipeline} pipeline stage(s); start torchrun with a multiple of {fitting}"
        )


def smallest(keys: LayoutKeys) -> Layout:
    """The first rank's place among as few processes as the sizes of `[training]` need; joins no group."""
    tensor, pipeline, context = (
        keys.tensor_model_parallel_size,
        keys.pipeline_model_parallel_size,
        keys.context_parallel_size,
    )
    expert = keys.expert_model_parallel_size
    share = math.lcm(tensor * context, expert)
    return Layout(
        rank=0,
        world_size=pipeline * share,
        dp_rank=0,
        dp_size=share // (tensor * context),
        tp_rank=0,
        tp_size=tensor,
        pp_rank=0,
        pp_size=pipeline,
        cp_size=context,
        ep_size=expert,
        sequence_parallel=keys.sequence_parallel,
    )


def _use_device(local_rank: int) -> None:
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ModelError(
            f"LOCAL_RANK {local_rank} has no GPU of its own among the {count} of this node; start torchrun with "
            f"--nproc_per_node={count}"
        )
    torch.cuda.set_device(local_rank)


def start(
    tensor: int,
    pipeline: int,
    seed: int,
    timeout_s: float = 1800.0,
    *,
    context: int = 1,
    expert: int = 1,
    sequence_parallel: bool = False,
) -> Layout:
    """Join the process group and Megatron's model-parallel groups, and seed the generators.

    Outside torchrun, this process is the whole world. Sizes are those of `[training]`.

    Raises:
        ModelError: the environment or the number of processes does not fit the sizes.
    """
    launched = launched_as()
    rank, world, local = launched or (0, 1, 0)
    check_sizes(world, tensor, pipeline, context, expert)
    if cpu.has_cuda():
        _use_device(local)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cpu.has_cuda() else "gloo",
        init_method="env://" if launched else f"tcp://127.0.0.1:{free_port()}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout_s),
    )
    return arrange(
        tensor, pipeline, seed, timeout_s, context=context, expert=expert, sequence_parallel=sequence_parallel
    )


def arrange(
    tensor: int,
    pipeline: int,
    seed: int,
    timeout_s: float = 1800.0,
    *,
    context: int = 1,
    expert: int = 1,
    sequence_parallel: bool = False,
) -> Layout:
    """Divide the processes of :func:`start` into Megatron's groups, anew where they were divided before; seed."""
    check_sizes(dist.get_world_size(), tensor, pipeline, context, expert)
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        context_parallel_size=context,
        expert_model_parallel_size=expert,
        # An expert is whole on its rank: small matrices, divided, would send more than they compute.
        expert_tensor_parallel_size=1,
        distributed_timeout_minutes=math.ceil(timeout_s / 60),
    )
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed, inference_rng_tracker=not cpu.has_cuda(), force_reset_rng=True)
    return layout(sequence_parallel=sequence_parallel)


def start_for(training: LayoutKeys, seed: int) -> Layout:
    """:func:`start` with the sizes of `[training]`."""
    return start(
        training.tensor_model_parallel_size,
        training.pipeline_model_parallel_size,
        seed,
        context=training.context_parallel_size,
        expert=training.expert_model_parallel_size,
        sequence_parallel=training.sequence_parallel,
    )


def layout(*, sequence_parallel: bool = False) -> Layout:
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
        cp_rank=parallel_state.get_context_parallel_rank(),
        cp_size=parallel_state.get_context_parallel_world_size(),
        ep_rank=parallel_state.get_expert_model_parallel_rank(),
        ep_size=parallel_state.get_expert_model_parallel_world_size(),
        sequence_parallel=sequence_parallel,
    )


def stop() -> None:
    """Leave the groups; waits for the other ranks, so that no one is cut off in a collective."""
    if not dist.is_initialized():
        return
    dist.barrier()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
