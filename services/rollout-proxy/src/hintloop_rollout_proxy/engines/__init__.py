"""One module per engine dialect, and what they share."""

from __future__ import annotations

from hintloop_rollout_proxy.engines.dialect import COMPLETIONS, GENERATE, Dialect, Hidden, Reader
from hintloop_rollout_proxy.engines.generate import GenerateReader
from hintloop_rollout_proxy.engines.reader import ReplyReader, TextReader
from hintloop_rollout_proxy.engines.sglang import SglangDialect
from hintloop_rollout_proxy.engines.vllm import VllmDialect

__all__ = ["Dialect", "SglangDialect", "VllmDialect", "dialect_of", "reader_of"]


def dialect_of(engine: str) -> Dialect:
    """The dialect named by ``rollout.engine``."""
    return VllmDialect() if engine == "vllm" else SglangDialect()


def reader_of(api: str, hidden: Hidden, public_model: str, fingerprint: str | None = None) -> Reader:
    """A reader for one answer of an API that can carry exact ids, by an engine with that ``system_fingerprint``."""
    if api == GENERATE:
        return GenerateReader(hidden)
    return (TextReader if api == COMPLETIONS else ReplyReader)(hidden, public_model, fingerprint)
