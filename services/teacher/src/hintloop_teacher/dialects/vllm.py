"""vLLM: ``/v1/completions`` with prompt ids and ``prompt_logprobs``; one token is generated and thrown away.

Each entry of ``prompt_logprobs`` maps ids to values: the token itself and the K most likely. With K candidates an
entry has K + 1 ids, or K when the token is one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hintloop_teacher.dialects.base import EngineFacts, first_choice, listed_model
from hintloop_teacher.errors import MisalignedError, MissingError, RefusedError
from hintloop_teacher.forced import RawScores
from hintloop_teacher.http import EngineClient


class VllmDialect:
    """Speaks to vLLM's OpenAI server."""

    name = "vllm"
    proves_ids = True

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def facts(self, wanted_model: str) -> EngineFacts:
        """Model and limits."""
        model, length = await listed_model(self._client, wanted_model)
        try:
            version = (await self._client.get("/version")).get("version")
        except RefusedError:
            version = None
        # One place is taken by the token that is generated and thrown away.
        return EngineFacts(self.name, version, model, None if length is None else length - 1)

    async def score(self, model: str, prompt_ids: Sequence[int], response_ids: Sequence[int], top_k: int) -> RawScores:
        """Raw scores of the response."""
        body = await self._client.post(
            "/v1/completions",
            {
                "model": model,
                "prompt": [*prompt_ids, *response_ids],
                "max_tokens": 1,
                "temperature": 1.0,
                "prompt_logprobs": top_k,
                "return_token_ids": True,
            },
        )
        return read_scores(first_choice(body), len(prompt_ids), response_ids, top_k)

    async def encode(self, model: str, text: str) -> list[int] | None:
        """Ids of bare text."""
        try:
            body = await self._client.post("/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
        except RefusedError:
            return None
        return list(body["tokens"])


def read_scores(choice: dict[str, Any], num_prompt: int, response_ids: Sequence[int], top_k: int) -> RawScores:
    """Raw scores from a completion's choice.

    Raises:
        MissingError: no prompt log-probabilities.
        MisalignedError: another number of tokens, or a response token is not among an entry's ids.
    """
    entries = choice.get("prompt_logprobs")
    if not isinstance(entries, list):
        raise MissingError("vLLM gave no prompt_logprobs")
    total = num_prompt + len(response_ids)
    echoed = choice.get("prompt_token_ids")
    if not isinstance(echoed, list) or len(echoed) != total or len(entries) != total:
        num_echoed = len(echoed) if isinstance(echoed, list) else 0
        raise MisalignedError(
            f"{total} ids were sent, vLLM scored {len(entries)} and names {num_echoed} as its prompt_token_ids"
        )
    values: list[float | None] = []
    rows: list[list[tuple[int, float | None]]] = []
    for position, (entry, token) in enumerate(zip(entries[num_prompt:], response_ids, strict=True)):
        if entry is None:
            raise MissingError(f"vLLM's entry of response token {position} is null")
        if str(token) not in entry:
            raise MisalignedError(f"response token {position} is {token}, vLLM's entry has {', '.join(entry)[:80]}")
        values.append(entry[str(token)].get("logprob"))
        if top_k:
            # The token itself stands beside the K candidates, unless it is one of them.
            extra = str(token) if len(entry) == top_k + 1 else None
            rows.append([(int(key), value.get("logprob")) for key, value in entry.items() if key != extra])
    return RawScores(echoed[num_prompt:], values, rows if top_k else None)
