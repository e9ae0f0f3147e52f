"""One module per engine dialect, and what they share."""

from __future__ import annotations

from hintloop_rollout_proxy.engines.dialect import Dialect
from hintloop_rollout_proxy.engines.sglang import SglangDialect
from hintloop_rollout_proxy.engines.vllm import VllmDialect

__all__ = ["Dialect", "SglangDialect", "VllmDialect", "dialect_of"]


def dialect_of(engine: str) -> Dialect:
    """The dialect named by ``rollout.engine``."""
    return VllmDialect() if engine == "vllm" else SglangDialect()
