"""Forced scoring: validates ids and length, asks the engine, checks what comes back. One for stream and HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hintloop_contract.errors import DependencyError

from hintloop_teacher.dialects.base import Dialect, EngineFacts
from hintloop_teacher.errors import MisalignedError, RefusedError, TooLongError
from hintloop_teacher.forced import ForcedScores, check_scores

DEPENDENCY = "prm-engine"


class ForcedScorer:
    """Scores responses on one engine, at most ``max_concurrency`` at once; the engine batches what is in flight."""

    def __init__(self, dialect: Dialect, facts: EngineFacts, *, vocabulary_size: int, max_concurrency: int) -> None:
        """``vocabulary_size``: ids at or above it are never sent (one of them ends an SGLang server)."""
        self.dialect = dialect
        self.facts = facts
        self.vocabulary_size = vocabulary_size
        self._gate = asyncio.Semaphore(max_concurrency)

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int], top_k: int = 0) -> ForcedScores:
        """Log-probability at temperature 1 of each response token, and its ``top_k`` candidates.

        Raises:
            TooLongError: prompt and response exceed the engine's context.
            MisalignedError: an id is outside the vocabulary, or other tokens were scored.
            MissingError: a log-probability is missing.
            RefusedError: the engine refuses the request.
            DependencyError: the engine is away.
        """
        self._check(prompt_ids, response_ids)
        async with self._gate:
            try:
                raw = await self.dialect.score(self.facts.model, prompt_ids, response_ids, top_k)
            except RefusedError as error:
                if error.status in (404, 405):
                    raise DependencyError(DEPENDENCY, str(error)) from error
                raise
        return check_scores(raw, response_ids, top_k)

    def _check(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> None:
        if not prompt_ids or not response_ids:
            empty = "prompt_ids" if not prompt_ids else "response_ids"
            raise MisalignedError(f"{empty} is empty; at least one token is needed")
        for name, ids in (("prompt", prompt_ids), ("response", response_ids)):
            if min(ids) < 0 or max(ids) >= self.vocabulary_size:
                wrong = next(i for i, token in enumerate(ids) if not 0 <= token < self.vocabulary_size)
                raise MisalignedError(
                    f"{name} token {wrong} is {ids[wrong]}, outside the vocabulary of {self.vocabulary_size} tokens"
                )
        length, limit = len(prompt_ids) + len(response_ids), self.facts.max_input_len
        if limit is not None and length > limit:
            raise TooLongError(f"{length} tokens with the hinted prompt; the PRM engine takes {limit}")
