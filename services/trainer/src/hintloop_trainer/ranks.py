"""One leader, and followers that do what it does: the leader names a method of the learner, all ranks call it."""

from __future__ import annotations

from typing import Any

import structlog
import torch.distributed as dist

from hintloop_trainer.errors import CheckpointError, TrainingError
from hintloop_trainer.megatron.parallel import Layout

_STOP, _IDLE = "stop", "idle"


class Ranks:
    """All ranks' copies of ``target``, called alike. Rank 0 leads."""

    def __init__(self, target: Any, layout: Layout) -> None:
        """``target`` is the object whose methods are called."""
        self._target = target
        self._layout = layout

    def call(self, method: str, *arguments: Any) -> Any:
        """Leader: call ``method`` on every rank and return this rank's result."""
        self._announce(method, arguments)
        return getattr(self._target, method)(*arguments)

    def idle(self) -> None:
        """Leader: tell the followers to wait on; keeps their collective from timing out."""
        self._announce(_IDLE, ())

    def stop(self) -> None:
        """Leader: end :meth:`follow` on the followers."""
        self._announce(_STOP, ())

    def follow(self) -> None:
        """Followers: do as told until told to stop."""
        while True:
            message: list[Any] = [None]
            dist.broadcast_object_list(message, src=0)
            method, arguments = message[0]
            if method == _STOP:
                return
            if method == _IDLE:
                continue
            try:
                getattr(self._target, method)(*arguments)
            except (TrainingError, CheckpointError) as error:
                # All ranks alike did nothing; what follows from it the leader says.
                structlog.get_logger().info("not done", method=method, detail=str(error))

    def _announce(self, method: str, arguments: tuple[Any, ...]) -> None:
        if self._layout.world_size > 1:
            dist.broadcast_object_list([(method, arguments)], src=0)
