"""vLLM: ``/v1/completions`` with prompt ids and ``prompt_logprobs``; one token is generated and thrown away.

Each entry of ``prompt_logprobs`` maps ids to values: the token itself and the K most likely. With K candidates an
entry has K + 1 ids, or K when the token is one of them.

Given candidates go through ``/inference/v1/generate`` (``--enable-scale-out``): all places in one request where the
engine's runner scores rows of ids, else one request a place, whose one generated token brings the values along.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from hintloop_teacher.dialects.base import EngineFacts, Question, first_choice, listed_model, token_list
from hintloop_teacher.errors import MisalignedError, MissingError, RefusedError, UnsupportedError
from hintloop_teacher.forced import RawScores
from hintloop_teacher.http import EngineClient

GENERATE_PATH = "/inference/v1/generate"
_CLOSED = (403, 404, 405)
_ID = re.compile(r"\d{1,10}", re.ASCII)


class VllmDialect:
    """Speaks to vLLM's OpenAI server."""

    name = "vllm"
    proves_ids = True
    takes_ids = True
    begins_late = False

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._candidates: Literal["rows", "places"] | None = None

    async def facts(self, wanted_model: str) -> EngineFacts:
        """Model and limits."""
        model, length = await listed_model(self._client, wanted_model)
        try:
            version = (await self._client.get("/version")).get("version")
        except RefusedError:
            version = None
        # One place is taken by the token that is generated and thrown away.
        return EngineFacts(self.name, version, model, None if length is None else length - 1)

    async def score(self, model: str, question: Question) -> RawScores:
        """Raw scores of the response."""
        body = await self._client.post(
            "/v1/completions",
            {
                "model": model,
                "prompt": question.ids,
                "max_tokens": 1,
                "temperature": question.temperature,
                "prompt_logprobs": question.top_k,
                "return_token_ids": True,
            },
        )
        return read_scores(first_choice(body), len(question.prompt_ids), question.response_ids, question.top_k)

    async def encode(self, model: str, text: str) -> list[int] | None:
        """Ids of bare text."""
        try:
            body = await self._client.post("/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
        except RefusedError:
            return None
        return token_list(body)

    async def find_candidates(self, model: str, ids: Sequence[int]) -> str:
        """Tries rows first, then a place at a time."""
        refusals = []
        for way, words in (("rows", "all places in one request"), ("places", "one request a place")):
            self._candidates = way  # type: ignore[assignment]
            try:
                await self.score_candidates(model, ids[:1], ids[1:2], [ids[:2]])
            except (RefusedError, MissingError) as error:
                self._candidates = None
                refusals.append(str(error)[:160])
            else:
                return words
        raise UnsupportedError(
            f"vLLM scores given candidates only at {GENERATE_PATH}, which is not open here ({refusals[-1]}); start it "
            "with --enable-scale-out, or take the teacher's own top K (topk_opd.use_teacher_topk = true)"
        )

    def candidate_span(self, candidate_ids: Sequence[Sequence[int]]) -> int:
        """All rows, or one."""
        if self._candidates is None:
            raise UnsupportedError(
                "this vLLM scores no given candidates; start it with --enable-scale-out, or take the teacher's own "
                "top K (topk_opd.use_teacher_topk = true)"
            )
        return len(candidate_ids) if self._candidates == "rows" else 1

    async def score_candidates(
        self, model: str, prompt_ids: Sequence[int], response_ids: Sequence[int], candidate_ids: Sequence[Sequence[int]]
    ) -> list[list[float | None]]:
        """Log-probabilities of given candidates."""
        if self._candidates == "rows":
            asked: dict[str, Any] = {
                "prompt_logprob_token_ids": [list(row) for row in candidate_ids],
                "prompt_logprob_start": len(prompt_ids) - 1,
            }
            body = await self._generate(model, [*prompt_ids, *response_ids], asked)
            return read_rows(body, candidate_ids)
        (row,) = candidate_ids
        # The token that was sampled takes the place of the last one listed, so one more is listed than is wanted.
        listed = [*row, next(token for token in range(len(row) + 1) if token not in row)]
        body = await self._generate(model, prompt_ids, {"logprobs": len(listed), "logprob_token_ids": listed})
        return [read_place(body, row)]

    async def _generate(self, model: str, ids: Sequence[int], asked: dict[str, Any]) -> dict[str, Any]:
        sampling = {"max_tokens": 1, "temperature": 1.0, **asked}
        body = {"model": model, "token_ids": list(ids), "sampling_params": sampling}
        return await self._client.post(GENERATE_PATH, body, refusals=_CLOSED)


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
        found = _entry(entry, position)
        if str(token) not in found:
            raise MisalignedError(f"response token {position} is {token}, vLLM's entry has {', '.join(found)[:80]}")
        values.append(found[str(token)])
        if top_k:
            # The token itself stands beside the K candidates, unless it is one of them.
            extra = str(token) if len(found) == top_k + 1 else None
            rows.append([(int(key), value) for key, value in found.items() if key != extra])
    return RawScores(echoed[num_prompt:], values, rows if top_k else None, entries[0])


def _entry(entry: Any, position: int) -> dict[str, float | None]:
    """``{id: log-probability}`` of one place."""
    if not isinstance(entry, dict) or not all(
        _ID.fullmatch(key) and isinstance(value, dict) for key, value in entry.items()
    ):
        what = "null" if entry is None else f"no map of ids to log-probabilities: {str(entry)[:80]}"
        raise MissingError(f"vLLM's entry of response token {position} is {what}")
    return {key: value.get("logprob") for key, value in entry.items()}


def read_rows(body: dict[str, Any], candidate_ids: Sequence[Sequence[int]]) -> list[list[float | None]]:
    """The rows of a generate answer, an ``.npy`` array in base 64. Raises ``MissingError`` when they are not there."""
    encoded = body.get("prompt_token_id_logprobs")
    if not isinstance(encoded, str):
        raise MissingError("vLLM gave no prompt_token_id_logprobs")
    try:
        array = np.load(io.BytesIO(base64.b64decode(encoded, validate=True)), allow_pickle=False)
    except (ValueError, binascii.Error, EOFError, MemoryError) as error:
        raise MissingError(f"vLLM's prompt_token_id_logprobs cannot be read: {error}") from error
    wanted = (len(candidate_ids), len(candidate_ids[0]))
    if array.shape != wanted or array.dtype.kind != "f":
        raise MissingError(f"vLLM gave candidates of shape {array.shape} and {array.dtype}, floats {wanted} were asked")
    return [[float(value) for value in row] for row in array]


def read_place(body: dict[str, Any], candidate_ids: Sequence[int]) -> list[float | None]:
    """The candidates of one generated token. Raises ``MissingError`` when one is not there."""
    logprobs = first_choice(body).get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    first = content[0] if isinstance(content, list) and content else None
    tops = first.get("top_logprobs") if isinstance(first, dict) else None
    if not isinstance(tops, list) or not all(
        isinstance(top, dict) and type(top.get("token_id")) is int for top in tops
    ):
        raise MissingError("vLLM's answer has no candidates of its one token")
    found = {top["token_id"]: top.get("logprob") for top in tops}
    if absent := [token for token in candidate_ids if token not in found]:
        raise MissingError(f"vLLM gave no log-probability of candidate {absent[0]}")
    return [found[token] for token in candidate_ids]
