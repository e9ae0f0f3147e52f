"""Errors of the console, named by boundary."""

from __future__ import annotations

from hintloop_contract.errors import HintloopError


class RequestError(HintloopError):
    """A request cannot be answered as it is: ``status`` is the HTTP status, the message is for who asked."""

    def __init__(self, status: int, message: str, *, retry_after_s: int | None = None) -> None:
        """Answer ``status`` with ``message``; ``retry_after_s``: when to ask again, if later helps."""
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class StoreError(HintloopError):
    """The console's database cannot be used; the message names its path and the fix."""
