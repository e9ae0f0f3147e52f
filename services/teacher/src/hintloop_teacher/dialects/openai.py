"""Any OpenAI-compatible completions API that echoes: prompt ids in, ``echo`` and ``logprobs`` out.

Only an API whose tokens come back as ``token_id:<n>`` proves what it scored; another is used only where the
teacher's tokenizer is given and equals the student's, and then without candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hintloop_teacher.dialects.base import EngineFacts, first_choice, listed_model
from hintloop_teacher.errors import MisalignedError, MissingError
from hintloop_teacher.forced import RawScores
from hintloop_teacher.http import EngineClient

_PREFIX = "token_id:"


class OpenAiDialect:
    """Speaks to a completions API."""

    name = "openai"

    def __init__(self, client: EngineClient, *, trust_positions: bool = False) -> None:
        """``trust_positions``: the tokenizers are known to be equal, so counting tokens is enough."""
        self._client = client
        self.proves_ids = not trust_positions

    async def facts(self, wanted_model: str) -> EngineFacts:
        """Model and limits."""
        model, length = await listed_model(self._client, wanted_model)
        return EngineFacts(self.name, None, model, length)

    async def score(self, model: str, prompt_ids: Sequence[int], response_ids: Sequence[int], top_k: int) -> RawScores:
        """Raw scores of the response."""
        body = await self._client.post(
            "/v1/completions",
            {
                "model": model,
                "prompt": [*prompt_ids, *response_ids],
                "max_tokens": 0,
                "temperature": 1.0,
                "echo": True,
                "logprobs": top_k,
                "return_tokens_as_token_ids": True,
            },
        )
        logprobs = first_choice(body).get("logprobs")
        if not isinstance(logprobs, dict):
            raise MissingError("the API gave no logprobs; it does not echo")
        return read_scores(logprobs, len(prompt_ids), response_ids, top_k, trust_positions=not self.proves_ids)

    async def encode(self, model: str, text: str) -> list[int] | None:
        """No such route."""
        return None


def read_scores(
    logprobs: dict[str, Any],
    num_prompt: int,
    response_ids: Sequence[int],
    top_k: int,
    *,
    trust_positions: bool = False,
) -> RawScores:
    """Raw scores from an echoed completion's ``logprobs``.

    Raises:
        MissingError: tokens or values are not there.
        MisalignedError: another number of tokens than was sent.
    """
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list):
        raise MissingError("the API's logprobs lack tokens or token_logprobs")
    total = num_prompt + len(response_ids)
    if len(tokens) != total or len(values) != total:
        raise MisalignedError(f"{total} ids were sent, the API echoed {len(tokens)} tokens and {len(values)} values")
    echoed = list(response_ids) if trust_positions else [_token_id(token) for token in tokens[num_prompt:]]
    rows = _rows(logprobs.get("top_logprobs"), num_prompt, response_ids, top_k) if top_k else None
    return RawScores(echoed, values[num_prompt:], rows)


def _token_id(token: Any) -> int | None:
    digits = token.removeprefix(_PREFIX) if isinstance(token, str) and token.startswith(_PREFIX) else ""
    return int(digits) if digits.isdigit() else None


def _rows(tops: Any, num_prompt: int, response_ids: Sequence[int], top_k: int) -> list[list[tuple[int, float | None]]]:
    if not isinstance(tops, list) or len(tops) != num_prompt + len(response_ids):
        raise MissingError("the API's logprobs lack top_logprobs")
    rows = []
    for position, (row, token) in enumerate(zip(tops[num_prompt:], response_ids, strict=True)):
        pairs = [(_token_id(key), value) for key, value in (row or {}).items()]
        if any(key is None for key, _ in pairs):
            raise MissingError(f"the candidates of response token {position} are not named by id")
        extra = token if len(pairs) == top_k + 1 else None
        rows.append([(key, value) for key, value in pairs if key is not None and key != extra])
    return rows
