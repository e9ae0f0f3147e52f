"""Errors of the judge, named by boundary. An engine that is away is the contract's ``DependencyError``."""

from __future__ import annotations

from hintloop_contract.errors import HintloopError


class RecordError(HintloopError):
    """A turn's record is freed or does not hold what it must."""


class PromptError(HintloopError):
    """A judge prompt file is missing or lacks a placeholder."""


class VoteError(HintloopError):
    """One vote cannot be counted; the message is the reason that the vote carries."""
