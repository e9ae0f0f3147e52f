"""Any OpenAI-compatible completions API that echoes: prompt ids in, ``echo`` and ``logprobs`` out.

Only an API that names the id of each echoed token proves what it scored (``token_id:<n>``, or a list of ids beside
the tokens); another is used only where the teacher's tokenizer is given and equals the student's, and then without
candidates. APIs differ in what they take: ``max_tokens`` 0 or at least 1, the request for ids or none. What is taken
is found at the first request and kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hintloop_teacher.dialects.base import EngineFacts, NoCandidates, Question, first_choice, listed_model, named_id
from hintloop_teacher.errors import MisalignedError, MissingError, RefusedError, UnsupportedError
from hintloop_teacher.forced import RawScores
from hintloop_teacher.http import EngineClient

COMPLETIONS_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Variant:
    """``max_tokens``: 0, or 1 where the API generates at least one. ``asks_ids``: tokens are asked as ids."""

    max_tokens: int
    asks_ids: bool


VARIANTS = tuple(Variant(max_tokens, asks_ids) for asks_ids in (True, False) for max_tokens in (0, 1))


class OpenAiDialect(NoCandidates):
    """Speaks to a completions API."""

    name = "openai"
    takes_ids = True
    begins_late = False

    def __init__(self, client: EngineClient, *, trust_positions: bool = False) -> None:
        """``trust_positions``: the tokenizers are known to be equal, so counting tokens is enough."""
        self._client = client
        self._variant: Variant | None = None
        self.proves_ids = not trust_positions

    async def facts(self, wanted_model: str) -> EngineFacts:
        """Model and limits."""
        model, length = await listed_model(self._client, wanted_model)
        # One place may be taken by a token that is generated and thrown away.
        return EngineFacts(self.name, None, model, None if length is None else length - 1)

    async def score(self, model: str, question: Question) -> RawScores:
        """Raw scores of the response.

        Raises:
            UnsupportedError: the API answers with log-probabilities of what it generated alone.
        """
        asked = {
            "model": model,
            "prompt": question.ids,
            "temperature": question.temperature,
            "echo": True,
            "logprobs": question.top_k,
        }
        body, variant = await self._completed(asked)
        logprobs = first_choice(body).get("logprobs")
        if not isinstance(logprobs, dict):
            raise UnsupportedError("the API gave no logprobs: it does not echo, so it scores no given tokens")
        return read_scores(
            {"prompt_token_ids": first_choice(body).get("prompt_token_ids"), **logprobs},
            len(question.prompt_ids),
            question.response_ids,
            question.top_k,
            num_generated=variant.max_tokens,
            trust_positions=not self.proves_ids,
        )

    async def encode(self, model: str, text: str) -> list[int] | None:
        """No such route."""
        return None

    async def _completed(self, asked: dict[str, Any]) -> tuple[dict[str, Any], Variant]:
        refusal: RefusedError | None = None
        for variant in VARIANTS if self._variant is None else (self._variant,):
            body = {**asked, "max_tokens": variant.max_tokens}
            if variant.asks_ids:
                body["return_tokens_as_token_ids"] = True
            try:
                answer = await self._client.post(COMPLETIONS_PATH, body)
            except RefusedError as error:
                if error.status not in (400, 422):
                    raise
                refusal = refusal or error
            else:
                self._variant = variant
                return answer, variant
        assert refusal is not None
        raise refusal


def read_scores(
    logprobs: dict[str, Any],
    num_prompt: int,
    response_ids: Sequence[int],
    top_k: int,
    *,
    num_generated: int = 0,
    trust_positions: bool = False,
) -> RawScores:
    """Raw scores from an echoed completion's ``logprobs``; the last ``num_generated`` tokens are not of the echo.

    Raises:
        UnsupportedError: only what was generated has log-probabilities.
        MissingError: tokens or values are not there.
        MisalignedError: another number of tokens than was sent.
    """
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list):
        raise MissingError("the API's logprobs lack tokens or token_logprobs")
    total = num_prompt + len(response_ids)
    if len(tokens) <= max(1, num_generated) < total:
        raise UnsupportedError(
            f"{total} ids were sent with echo, the API's logprobs cover {len(tokens)} token(s), those it generated "
            "itself: it does not echo log-probabilities, so it scores no given tokens"
        )
    if len(tokens) != total + num_generated or len(values) != total + num_generated:
        generated = f" and {num_generated} generated" if num_generated else ""
        raise MisalignedError(
            f"{total} ids were sent{generated}, the API echoed {len(tokens)} tokens and {len(values)} values"
        )
    echoed = list(response_ids) if trust_positions else _echoed_ids(logprobs, tokens, total)[num_prompt:]
    rows = _rows(logprobs.get("top_logprobs"), num_prompt, response_ids, top_k, len(tokens)) if top_k else None
    return RawScores(echoed, values[num_prompt:total], rows, values[0])


def _echoed_ids(logprobs: dict[str, Any], tokens: list[Any], total: int) -> list[int | None]:
    """Ids by the tokens' own names, or by a list of ids beside them."""
    named = [named_id(token) for token in tokens[:total]]
    if None not in named:
        return named
    for key in ("token_ids", "prompt_token_ids"):
        beside = logprobs.get(key)
        if isinstance(beside, list) and len(beside) >= total and all(type(token) is int for token in beside):
            return list(beside[:total])
    return named


def _rows(
    tops: Any, num_prompt: int, response_ids: Sequence[int], top_k: int, num_tokens: int
) -> list[list[tuple[int, float | None]]]:
    total = num_prompt + len(response_ids)
    if not isinstance(tops, list) or len(tops) != num_tokens:
        found = len(tops) if isinstance(tops, list) else 0
        raise MissingError(f"the API's logprobs have {num_tokens} tokens and {found} top_logprobs")
    rows = []
    for position, (row, token) in enumerate(zip(tops[num_prompt:total], response_ids, strict=True)):
        if not isinstance(row, dict):
            raise MissingError(f"the candidates of response token {position} are {row!r:.60}")
        pairs = [(named_id(key), value) for key, value in row.items()]
        if any(key is None for key, _ in pairs):
            raise MissingError(f"the candidates of response token {position} are not named by id")
        extra = token if len(pairs) == top_k + 1 else None
        rows.append([(key, value) for key, value in pairs if key is not None and key != extra])
    return rows
