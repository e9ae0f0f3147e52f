"""Keeps an eye on `_prm_url`: says when it goes and comes, and runs the null-hint control once it is there.

Training of scored samples goes on without it; that it is gone is seen in the logs, the status and the metrics.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog
from hintloop_contract.errors import DependencyError

from hintloop_trainer import null_hint
from hintloop_trainer.errors import ScoringRefusedError
from hintloop_trainer.null_hint import NullHint, Reference
from hintloop_trainer.prm_client import PrmClient, Unscorable

INTERVAL_S = 10.0
RETRY_S = 2.0


class PrmWatch:
    """What is known of the service now. Runs in the background loop; read from any thread."""

    def __init__(self, client: PrmClient) -> None:
        """Know nothing yet."""
        self._client = client
        self._log = structlog.get_logger()
        self.available: bool | None = None
        self.detail = ""
        self.control: NullHint | None = None

    def fields(self) -> dict[str, str]:
        """For the trainer's status."""
        if self.available is None:
            return {"prm": ""}
        found = {"prm": "up" if self.available else f"away: {self.detail}"}
        if self.control is not None:
            found["null_hint"] = "equal" if self.control.passed else self.control.sentence()
        return found

    async def serve(self, known: Reference | None, limits: tuple[float, float], stop: asyncio.Event) -> None:
        """Watch until ``stop``."""
        while not stop.is_set():
            if known is not None and await self._controlled(known, limits):
                known = None
            if known is None:
                self._note(*await self._client.health())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), RETRY_S if self.available is False else INTERVAL_S)

    async def _controlled(self, known: Reference, limits: tuple[float, float]) -> bool:
        """Whether the control is done with, one way or the other."""
        try:
            found = await null_hint.compare(self._client, known, limits)
        except DependencyError as error:
            self._note(False, error.detail)
            return False
        except ScoringRefusedError as error:
            self._log.warning("null-hint control not run", detail=str(error))
            return True
        self._note(True, "")
        if isinstance(found, Unscorable):
            self._log.warning("null-hint control not run", detail=found.detail)
            return True
        self.control = found
        (self._log.info if found.passed else self._log.warning)("null-hint control", **found.as_dict())
        return True

    def _note(self, available: bool, detail: str) -> None:
        if available != self.available:
            if available:
                self._log.info("prm there", detail=detail)
            else:
                self._log.warning("prm away", detail=detail)
        self.available, self.detail = available, detail
