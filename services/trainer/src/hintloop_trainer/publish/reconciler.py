"""Looks at the engines every few seconds: one that restarted with other weights gets the current ones."""

from __future__ import annotations

import asyncio
import contextlib

import structlog
from hintloop_contract.errors import DependencyError

from hintloop_trainer.publish.protocol import Publisher


async def reconcile_forever(publisher: Publisher, interval_s: float, stop: asyncio.Event) -> None:
    """Reconcile every ``interval_s`` seconds until ``stop``; whatever one look runs into, there is a next one."""
    log = structlog.get_logger()
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), interval_s)
            return
        try:
            await publisher.reconcile()
        except DependencyError as error:
            log.warning("broker away", detail=str(error))
        except Exception as error:  # written down, and an engine may be right at the next look
            log.error("reconciling failed", error=f"{type(error).__name__}: {error}", exc_info=True)
