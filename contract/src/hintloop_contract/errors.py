"""Errors of the contract, named by boundary."""

from __future__ import annotations


class HintloopError(Exception):
    """Base of every error that Hintloop raises on purpose."""


class ConfigError(HintloopError):
    """The configuration is wrong; the message names the field, the value and the fix."""


class MessageError(HintloopError):
    """A message or packed array cannot be encoded or decoded."""


class DependencyError(HintloopError):
    """Something a worker depends on is away (engine, PRM, Redis). It counts against no message."""

    def __init__(self, dependency: str, detail: str) -> None:
        """Name the ``dependency`` (such as ``prm-engine``) and say in ``detail`` what was seen."""
        super().__init__(f"{dependency} is not available: {detail}")
        self.dependency = dependency
        self.detail = detail
