"""vLLM's weight-transfer protocol over a torch process group: gloo on CPU, NCCL on GPU, one code for both.

vLLM's own backends need CUDA, and a trainer with vLLM installed. This one meets the trainer in a group that any
torch can join, tensor by tensor in the order that the trainer announces. It is registered when vLLM imports the
worker extension, before the worker makes its transfer engine, and chosen by
`--weight-transfer-config '{"backend": "hintloop"}'`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from hintloop_vllm.reload import CheckpointMismatchError, check_same_tensors, is_tied, read_shapes, repack_head

BACKEND = "hintloop"


@dataclass
class Meeting(WeightTransferInitInfo):
    """Where and as what the workers meet the trainer, who is rank 0 and holds the store."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str
    backend: str
    timeout_s: float


@dataclass
class Announcement(WeightTransferUpdateInfo):
    """The tensors that the trainer sends next, by their Hugging Face names."""

    names: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    abandon: str = ""
    """Why nothing more comes; ends the update."""


class TransferAbandonedError(Exception):
    """The trainer gave the update up; what is loaded is of no version."""


def join(meeting: Meeting, rank: int) -> Any:
    """Join a group outside of vLLM's own world; blocks until all of it are there."""
    timeout = timedelta(seconds=meeting.timeout_s)
    store = dist.TCPStore(
        meeting.master_address, meeting.master_port, meeting.world_size, is_master=False, timeout=timeout
    )
    group, _ = c10d._new_process_group_helper(
        meeting.world_size,
        rank,
        [],
        c10d.Backend(meeting.backend),
        c10d.PrefixStore(meeting.group_name, store),
        group_name=meeting.group_name,
        timeout=timeout,
    )
    # Collectives look their group's ranks up here.
    c10d._world.pg_group_ranks[group] = {member: member for member in range(meeting.world_size)}
    return group


class GroupTransferEngine(WeightTransferEngine):
    """Receives tensors from the trainer and loads them layer by layer."""

    init_info_cls = Meeting
    update_info_cls = Announcement
    supports_draft_weight_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Belong to one worker; see the base class."""
        super().__init__(*args, **kwargs)
        self._group: Any = None
        self._offered: dict[str, tuple[int, ...]] = {}
        # A reload points the configuration at another directory.
        self._served = read_shapes_or_none(self.model_config.model)

    def init_transfer_engine(self, init_info: Meeting) -> None:
        """Join the trainer's group, after leaving an earlier one."""
        self.shutdown()
        parallel = self.parallel_config
        number = parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._group = join(init_info, init_info.rank_offset + number)

    def start_weight_update(self) -> None:
        """Prepare the layers to be filled anew."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self._offered = {}
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive what is announced. A failure leaves layers that the next update can fill."""
        announced = self.parse_update_info(update_info)
        try:
            self.receive_weights(announced)
        except BaseException:
            # Half-filled layers would count what the next update brings as too much, and drop it.
            self._finalize()
            raise

    def receive_weights(self, update_info: Announcement) -> None:
        """Receive one tensor after the other and load it."""
        if update_info.abandon:
            raise TransferAbandonedError(update_info.abandon)
        if self._group is None:
            raise RuntimeError("no group to receive from: the engine did not meet the trainer since it started")
        for name, dtype, shape in zip(update_info.names, update_info.dtypes, update_info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
            dist.broadcast(tensor, src=0, group=self._group)
            self.model.load_weights([(name, tensor)])
            self._offered[name] = tuple(shape)

    def finish_weight_update(self) -> None:
        """Finish the layers, a tied head included.

        Raises:
            CheckpointMismatchError: what came is not what the model has; the layers are of no version.
        """
        self._finalize()
        if self._served is not None:
            check_same_tensors(self._served, self._offered, is_tied(self.model_config))

    def _finalize(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        if is_tied(self.model_config):
            repack_head(self.model)

    def shutdown(self) -> None:
        """Leave the group."""
        if self._group is not None:
            group, self._group = self._group, None
            dist.destroy_process_group(group)


def read_shapes_or_none(directory: str) -> dict[str, tuple[int, ...]] | None:
    """The shapes of the served checkpoint; `None` when it does not lie in a directory of safetensors files."""
    try:
        return read_shapes(Path(directory))
    except (CheckpointMismatchError, OSError, ValueError):
        return None


def register() -> None:
    """Make the backend known to vLLM; importing twice does nothing."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, GroupTransferEngine)
