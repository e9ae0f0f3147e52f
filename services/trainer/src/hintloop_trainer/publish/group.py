"""The process group in which one engine's workers receive weights from the trainer.

It stands outside the trainer's own world: rank 0 is the trainer's leading rank, the others are the engine's workers.
Gloo without CUDA, NCCL with it. Nothing here waits without a deadline: a member that is lost costs the group, never
the trainer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from hintloop_contract.ids import new_id
from torch.distributed import distributed_c10d as c10d

#: How often a transfer is looked at, seconds.
LOOK_S = 0.001
#: NCCL's own watchdog ends the whole process; it must never come before the deadline that is kept here.
WATCHDOG_FACTOR = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where and as what an engine's workers join."""

    address: str
    port: int
    world_size: int
    """The trainer and all workers of the engine."""
    name: str
    backend: str
    """``gloo`` or ``nccl``."""
    timeout_s: float


def address_facing(url: str) -> str:
    """This host's address on the way to ``url``.

    Raises:
        OSError: the host is unknown or out of reach.
    """
    parts = urlsplit(url)
    family, kind, protocol, _, target = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
    # Connecting a datagram socket sends nothing; it only chooses the way.
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        address: str = probe.getsockname()[0]
        return address


class WeightGroup:
    """An open group; made by :meth:`open` while the workers join."""

    def __init__(self, meeting: Meeting, group: Any, device: torch.device) -> None:
        """``device`` is where tensors are sent from."""
        self.meeting = meeting
        self.device = device
        self._group = group

    @classmethod
    def invite(cls, url: str, num_workers: int, device: torch.device, timeout_s: float) -> Invitation:
        """Listen for the workers of the engine at ``url``.

        Raises:
            OSError: no way to the engine, or no port.
        """
        address = address_facing(url)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=num_workers + 8)
        meeting = Meeting(
            address=address,
            port=listener.getsockname()[1],
            world_size=1 + num_workers,
            name=f"hintloop-{new_id()}",
            backend="nccl" if device.type == "cuda" else "gloo",
            timeout_s=timeout_s,
        )
        return Invitation(meeting, listener, device)

    async def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """Send tensors to all workers, in order; each contiguous and on :attr:`device`.

        Raises:
            TimeoutError: not done within the meeting's seconds.
            RuntimeError: a member is lost.
        """
        works = [dist.broadcast(tensor, src=0, group=self._group, async_op=True) for tensor in tensors]
        async with asyncio.timeout(self.meeting.timeout_s):
            for work in works:
                while not work.is_completed():  # noqa: ASYNC110 - torch has nothing to wait on
                    await asyncio.sleep(LOOK_S)
                # Done already: this only raises what went wrong.
                work.wait()

    def close(self) -> None:
        """Leave the group, whatever its members do; may take the meeting's seconds after a failure."""
        group, self._group = self._group, None
        if group is not None:
            c10d._abort_process_group(group)


class Invitation:
    """A port that waits for workers; :meth:`open` completes the group."""

    def __init__(self, meeting: Meeting, listener: socket.socket, device: torch.device) -> None:
        """See :meth:`WeightGroup.invite`."""
        self.meeting = meeting
        self._listener = listener
        self._device = device

    def open(self) -> WeightGroup:
        """Wait until every worker has joined. Blocks.

        Raises:
            RuntimeError: they did not within the meeting's seconds.
        """
        meeting = self.meeting
        timeout = timedelta(seconds=meeting.timeout_s)
        store = dist.TCPStore(  # type: ignore[attr-defined]  # torch exports it where it has c10d
            meeting.address,
            meeting.port,
            meeting.world_size,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=self._listener.detach(),
        )
        patience = timeout * WATCHDOG_FACTOR if meeting.backend == "nccl" else timeout
        group, _ = c10d._new_process_group_helper(
            meeting.world_size,
            0,
            [],
            c10d.Backend(meeting.backend),
            c10d.PrefixStore(meeting.name, store),
            group_name=c10d.GroupName(meeting.name),
            timeout=patience,
        )
        # Collectives and closing look a group's ranks up here; only groups of the own world are entered by torch.
        c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(meeting.world_size)}
        return WeightGroup(meeting, group, self._device)
