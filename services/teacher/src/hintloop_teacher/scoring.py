"""Forced scoring: validates ids and length, asks the engine, checks what comes back. One for stream, HTTP and gRPC.

A long answer is scored in chunks where the engine can begin in the middle: each with the whole prefix before it, one
after the other, so that the engine finds the prefix in its cache. The numbers are those of one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from hintloop_contract.errors import DependencyError

from hintloop_teacher.concurrency import all_of
from hintloop_teacher.dialects.base import Dialect, EngineFacts, Message, Question
from hintloop_teacher.errors import RefusedError, TooLongError, UnsupportedError, WrongIdsError
from hintloop_teacher.forced import ForcedScores, check_scores, joined, with_candidates

DEPENDENCY = "prm-engine"
#: How engines say that a request exceeds their context, where their models route does not tell its length.
_TOO_LONG = (
    "context length",
    "context_length",
    "maximum allowed length",
    "max_model_len",
    "is too long",
    "longer than",
)

Result = TypeVar("Result")


class ForcedScorer:
    """Scores responses on one engine, at most ``max_concurrency`` requests at once; the engine batches what is in
    flight."""

    def __init__(
        self,
        dialect: Dialect,
        facts: EngineFacts,
        *,
        vocabulary_size: int,
        max_concurrency: int,
        chunk_tokens: int = 1024,
        num_ids: int | None = None,
    ) -> None:
        """``vocabulary_size``: ids at or above it are never sent (one of them ends an SGLang server). ``num_ids``: how
        many ids the student has, those of no token included; candidates beyond them are none that it can learn from.
        """
        self.dialect = dialect
        self.facts = facts
        self.vocabulary_size = vocabulary_size
        self.chunk_tokens = chunk_tokens
        self._num_ids = num_ids or vocabulary_size
        self.no_candidates: str | None = None
        """Why given candidates are refused, as the probe found; ``None`` while nothing speaks against them."""
        self._gate = asyncio.Semaphore(max_concurrency)

    async def score(
        self,
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
        top_k: int = 0,
        candidate_ids: Sequence[Sequence[int]] | None = None,
        *,
        messages: Sequence[Message] | None = None,
    ) -> ForcedScores:
        """Log-probability at temperature 1 of each response token, and of candidates at its place.

        Args:
            prompt_ids: token ids before the response.
            response_ids: token ids to score, T.
            top_k: the engine's own most likely candidates per token; 0 for none.
            candidate_ids: given candidates [T, K] instead, K distinct ids per token.
            messages: what the ids say, for an engine that takes no ids; ``None`` where only ids are known.

        Raises:
            TooLongError: prompt and response exceed the engine's context.
            WrongIdsError: an id is outside the vocabulary, or rows of candidates do not fit.
            MisalignedError: other tokens were scored.
            MissingError: a log-probability is missing.
            UnsupportedError: the engine scores no given candidates, or takes no ids.
            RefusedError: the engine refuses the request.
            DependencyError: the engine is away.
        """
        self._check(prompt_ids, response_ids)
        if top_k > self.vocabulary_size:
            # Asked for more than there are, an engine may end.
            raise WrongIdsError(f"top_k is {top_k}; the vocabulary has {self.vocabulary_size} tokens")
        if messages is None and not self.dialect.takes_ids:
            raise UnsupportedError("the PRM engine takes messages, not token ids; it scores turns of the stream alone")
        if candidate_ids is not None:
            self._check_candidates(response_ids, candidate_ids)
        ids = [*prompt_ids, *response_ids]
        size = self.chunk_tokens if self.dialect.begins_late else len(response_ids)
        parts = []
        for begin in range(len(prompt_ids), len(ids), size):
            chunk = ids[begin : begin + size]
            question = Question(ids[:begin], chunk, top_k, messages=messages)
            raw = await self._asked(partial(self.dialect.score, self.facts.model, question))
            parts.append(check_scores(raw, chunk, top_k, self._num_ids))
        scores = joined(parts)
        if candidate_ids is None:
            return scores
        rows = await self._candidates(prompt_ids, response_ids, candidate_ids)
        return with_candidates(scores.logprobs, candidate_ids, rows)

    async def _candidates(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], candidate_ids: Sequence[Sequence[int]]
    ) -> list[list[float | None]]:
        ids, start = [*prompt_ids, *response_ids], len(prompt_ids)
        asked = []
        begin = 0
        while begin < len(response_ids):
            end = begin + self.dialect.candidate_span(candidate_ids[begin:])
            asked.append(
                partial(
                    self.dialect.score_candidates,
                    self.facts.model,
                    ids[: start + begin],
                    ids[start + begin : start + end],
                    candidate_ids[begin:end],
                )
            )
            begin = end
        # The answer was just scored whole: every span finds its prefix in the engine's cache.
        return [row for rows in await all_of(*map(self._asked, asked)) for row in rows]

    async def _asked(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        async with self._gate:
            try:
                return await ask()
            except RefusedError as error:
                if error.status in (404, 405):
                    raise DependencyError(DEPENDENCY, str(error)) from error
                if error.status == 413 or any(words in error.text.lower() for words in _TOO_LONG):
                    raise TooLongError(f"the PRM engine says that it is too long: {error.text:.200}") from error
                raise

    def _check(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> None:
        if not prompt_ids or not response_ids:
            empty = "prompt_ids" if not prompt_ids else "response_ids"
            raise WrongIdsError(f"{empty} is empty; at least one token is needed")
        self._check_ids("prompt token", prompt_ids)
        self._check_ids("response token", response_ids)
        length, limit = len(prompt_ids) + len(response_ids), self.facts.max_input_len
        if limit is not None and length > limit:
            raise TooLongError(f"{length} tokens with the hinted prompt; the PRM engine takes {limit}")

    def _check_candidates(self, response_ids: Sequence[int], candidate_ids: Sequence[Sequence[int]]) -> None:
        if len(candidate_ids) != len(response_ids):
            raise WrongIdsError(
                f"candidate_ids has {len(candidate_ids)} rows, response_ids {len(response_ids)} tokens; "
                "give one row of candidates per response token"
            )
        widths = {len(row) for row in candidate_ids}
        if len(widths) != 1 or widths == {0}:
            raise WrongIdsError(f"rows of candidate_ids have {sorted(widths)} ids; give K in each, at least 1")
        for position, row in enumerate(candidate_ids):
            self._check_ids(f"candidate at response token {position}, number", row)
            if len(set(row)) != len(row):
                raise WrongIdsError(f"candidate_ids at response token {position} name an id twice; give K distinct")
        if self.no_candidates is not None:
            raise UnsupportedError(f"candidate_ids: {self.no_candidates}")
        self.dialect.candidate_span(candidate_ids)

    def _check_ids(self, name: str, ids: Sequence[int]) -> None:
        if min(ids) < 0 or max(ids) >= self.vocabulary_size:
            wrong = next(i for i, token in enumerate(ids) if not 0 <= token < self.vocabulary_size)
            raise WrongIdsError(
                f"{name} {wrong} is {ids[wrong]}, outside the vocabulary of {self.vocabulary_size} tokens"
            )
