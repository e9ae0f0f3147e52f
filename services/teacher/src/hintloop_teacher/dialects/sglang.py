"""SGLang: ``/generate`` with no new tokens and input log-probabilities from one token before the response.

The first entry it returns has no value, wherever it starts: asked one earlier, that is the last prompt token's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hintloop_teacher.dialects.base import EngineFacts, Question, listed_model, token_list
from hintloop_teacher.errors import MisalignedError, MissingError, RefusedError
from hintloop_teacher.forced import RawScores
from hintloop_teacher.http import EngineClient

#: Given candidates: the server takes one list of ids for all places of a request, so a request holds as many places
#: as keep the list below this.
MAX_LISTED_IDS = 512


class SglangDialect:
    """Speaks to SGLang's own server."""

    name = "sglang"
    proves_ids = True
    takes_ids = True
    begins_late = True

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def facts(self, wanted_model: str) -> EngineFacts:
        """Model and limits. The server takes any name for its one model, so the wanted one is compared here."""
        model, length = await listed_model(self._client, wanted_model)
        info = await self._info("/server_info")
        limit = info.get("max_req_input_len", length)
        weights = (await self._info("/model_info")).get("weight_version")
        return EngineFacts(
            self.name,
            info.get("version"),
            model,
            # The server refuses inputs that reach its limit.
            limit - 1 if isinstance(limit, int) else None,
            str(weights) if weights is not None else None,
        )

    async def _info(self, path: str) -> dict[str, Any]:
        try:
            return await self._client.get(path)
        except RefusedError:
            return {}

    async def score(self, model: str, question: Question) -> RawScores:
        """Raw scores of the response. The server has one model; ``model`` is not sent."""
        meta = await self._generate(question, {"top_logprobs_num": question.top_k})
        return read_scores(meta, question.prompt_ids[-1], len(question.response_ids), question.top_k)

    async def find_candidates(self, model: str, ids: Sequence[int]) -> str:
        """Asks two candidates at two places."""
        await self.score_candidates(model, ids[:1], ids[1:3], [ids[:2], ids[1:3]])
        return f"one list of ids for all places of a request, at most {MAX_LISTED_IDS} unless one place has more"

    def candidate_span(self, candidate_ids: Sequence[Sequence[int]]) -> int:
        """Rows until their ids together are too many for one list."""
        listed: set[int] = set()
        for index, row in enumerate(candidate_ids):
            listed.update(row)
            if len(listed) > MAX_LISTED_IDS:
                return max(1, index)
        return len(candidate_ids)

    async def score_candidates(
        self, model: str, prompt_ids: Sequence[int], response_ids: Sequence[int], candidate_ids: Sequence[Sequence[int]]
    ) -> list[list[float | None]]:
        """Asks all these rows' ids at every place and takes from each place its own."""
        listed = sorted({token for row in candidate_ids for token in row})
        meta = await self._generate(Question(prompt_ids, response_ids), {"token_ids_logprob": listed})
        read_scores(meta, prompt_ids[-1], len(response_ids), 0)
        return read_candidates(meta, candidate_ids)

    async def _generate(self, question: Question, asked: dict[str, Any]) -> dict[str, Any]:
        body = await self._client.post(
            "/generate",
            {
                "input_ids": question.ids,
                "sampling_params": {"max_new_tokens": 0, "temperature": question.temperature},
                "return_logprob": True,
                "logprob_start_len": len(question.prompt_ids) - 1,
                **asked,
            },
        )
        meta = body.get("meta_info")
        if not isinstance(meta, dict):
            raise MissingError("SGLang's answer has no meta_info")
        return meta

    async def encode(self, model: str, text: str) -> list[int] | None:
        """Ids of bare text."""
        try:
            body = await self._client.post("/v1/tokenize", {"prompt": text, "add_special_tokens": False})
        except RefusedError:
            return None
        return token_list(body)


def read_scores(meta: dict[str, Any], last_prompt_id: int, num_response: int, top_k: int) -> RawScores:
    """Raw scores from ``meta_info``.

    Raises:
        MissingError: no input log-probabilities, or a row of candidates is null.
        MisalignedError: the entries do not start at the last prompt token, or are too few or too many.
    """
    entries = meta.get("input_token_logprobs")
    if not isinstance(entries, list):
        raise MissingError("SGLang gave no input_token_logprobs")
    if not all(isinstance(entry, list) and len(entry) >= 2 for entry in entries):
        raise MissingError("SGLang's input_token_logprobs are not [log-probability, id, text] each")
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
        entries[0][0],
    )


def read_candidates(meta: dict[str, Any], candidate_ids: Sequence[Sequence[int]]) -> list[list[float | None]]:
    """Log-probabilities of each place's own candidates from the list that was asked at every place.

    Raises:
        MissingError: rows, or candidates in a row, are not there.
    """
    rows = []
    listed = meta.get("input_token_ids_logprobs")
    for position, (row, wanted) in enumerate(zip(_rows(listed, len(candidate_ids)), candidate_ids, strict=True)):
        found = dict(row)
        if absent := [token for token in wanted if token not in found]:
            raise MissingError(f"SGLang gave no log-probability of candidate {absent[0]} at response token {position}")
        rows.append([found[token] for token in wanted])
    return rows


def _pair(item: Any, position: int) -> tuple[int, float | None]:
    if not isinstance(item, list) or len(item) < 2 or type(item[1]) is not int:
        raise MissingError(
            f"SGLang's candidate of response token {position} is {item!r:.60}, not [log-probability, id, text]"
        )
    return item[1], item[0]


def _rows(tops: Any, num_response: int) -> list[list[tuple[int, float | None]]]:
    if not isinstance(tops, list) or len(tops) != num_response + 1:
        count = len(tops) if isinstance(tops, list) else 0
        raise MissingError(f"{num_response + 1} rows of candidates were asked, SGLang gave {count}")
    rows = []
    for position, row in enumerate(tops[1:]):
        if not isinstance(row, list):
            raise MissingError(f"SGLang's candidates of response token {position} are null")
        rows.append([_pair(item, position) for item in row])
    return rows
