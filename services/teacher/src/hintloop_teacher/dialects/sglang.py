"""SGLang: ``/generate`` with no new tokens and input log-probabilities from one token before the response.

The first entry it returns has no value, wherever it starts: asked one earlier, that is the last prompt token's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hintloop_teacher.dialects.base import EngineFacts, listed_model
from hintloop_teacher.errors import MisalignedError, MissingError, RefusedError
from hintloop_teacher.forced import RawScores
from hintloop_teacher.http import EngineClient


class SglangDialect:
    """Speaks to SGLang's own server."""

    name = "sglang"
    proves_ids = True

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def facts(self, wanted_model: str) -> EngineFacts:
        """Model and limits."""
        model, length = await listed_model(self._client, wanted_model)
        try:
            info = await self._client.get("/server_info")
        except RefusedError:
            info = {}
        limit = info.get("max_req_input_len", length)
        # The server refuses inputs that reach its limit.
        return EngineFacts(self.name, info.get("version"), model, limit - 1 if isinstance(limit, int) else None)

    async def score(self, model: str, prompt_ids: Sequence[int], response_ids: Sequence[int], top_k: int) -> RawScores:
        """Raw scores of the response. The server has one model; ``model`` is not sent."""
        body = await self._client.post(
            "/generate",
            {
                "input_ids": [*prompt_ids, *response_ids],
                "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
                "return_logprob": True,
                "logprob_start_len": len(prompt_ids) - 1,
                "top_logprobs_num": top_k,
            },
        )
        meta = body.get("meta_info") if isinstance(body, dict) else None
        if not isinstance(meta, dict):
            raise MissingError("SGLang's answer has no meta_info")
        return read_scores(meta, prompt_ids[-1], len(response_ids), top_k)

    async def encode(self, model: str, text: str) -> list[int] | None:
        """Ids of bare text."""
        try:
            body = await self._client.post("/v1/tokenize", {"prompt": text, "add_special_tokens": False})
        except RefusedError:
            return None
        return list(body["tokens"])


def read_scores(meta: dict[str, Any], last_prompt_id: int, num_response: int, top_k: int) -> RawScores:
    """Raw scores from ``meta_info``.

    Raises:
        MissingError: no input log-probabilities, or a row of candidates is null.
        MisalignedError: the entries do not start at the last prompt token, or are too few or too many.
    """
    entries = meta.get("input_token_logprobs")
    if not isinstance(entries, list):
        raise MissingError("SGLang gave no input_token_logprobs")
    if len(entries) != num_response + 1 or entries[0][1] != last_prompt_id:
        first = entries[0][1] if entries else None
        raise MisalignedError(
            f"{num_response + 1} entries from token {last_prompt_id} on were asked, "
            f"SGLang gave {len(entries)} from token {first} on"
        )
    scored = entries[1:]
    return RawScores(
        [entry[1] for entry in scored],
        [entry[0] for entry in scored],
        _rows(meta.get("input_top_logprobs"), num_response) if top_k else None,
    )


def _rows(tops: Any, num_response: int) -> list[list[tuple[int, float | None]]]:
    if not isinstance(tops, list) or len(tops) != num_response + 1:
        count = len(tops) if isinstance(tops, list) else 0
        raise MissingError(f"{num_response + 1} rows of candidates were asked, SGLang gave {count}")
    rows = []
    for position, row in enumerate(tops[1:]):
        if not isinstance(row, list):
            raise MissingError(f"SGLang's candidates of response token {position} are null")
        rows.append([(int(item[1]), item[0]) for item in row])
    return rows
