"""What a dialect is: ids in, raw scores out. Checking is `forced`'s, retries are `http`'s."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hintloop_teacher.errors import MissingError, ProbeError, ProbeReason, RefusedError, UnsupportedError
from hintloop_teacher.forced import RawScores
from hintloop_teacher.http import EngineClient


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine says of itself. ``max_input_len``: most tokens of one request, ``weights``: the version of its
    weights; ``None`` where it does not say."""

    dialect: str
    version: str | None
    model: str
    max_input_len: int | None
    weights: str | None = None


Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """Score ``response_ids`` behind ``prompt_ids`` (at least one), with the ``top_k`` likeliest tokens of each place.

    ``temperature`` is the request's; another than 1 is asked by the probe alone, to see whether scores follow it.
    ``messages`` say the same as the ids, the response being the last; only an engine that takes no ids reads them.
    """

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    top_k: int = 0
    temperature: float = 1.0
    messages: Sequence[Message] | None = None

    @property
    def ids(self) -> list[int]:
        """Prompt and response."""
        return [*self.prompt_ids, *self.response_ids]


#: How a completions or chat API names a token by its id, where it is asked to.
_NAMED_ID = re.compile(r"token_id:(\d{1,10})", re.ASCII)


class Dialect(Protocol):
    """One kind of engine."""

    name: str
    proves_ids: bool
    """Its answers name the id of each token that was scored."""
    takes_ids: bool
    """It is asked by ids; else by messages, and a question without them cannot be asked."""
    begins_late: bool
    """It scores the end of a sequence without scoring (and answering with) what lies before, so that a long answer
    can be scored in chunks; elsewhere chunks would cost the whole of it each."""

    async def facts(self, wanted_model: str) -> EngineFacts:
        """Model (``wanted_model``, or the first) and limits. Raises ``DependencyError``, ``ProbeError``."""
        ...

    async def score(self, model: str, question: Question) -> RawScores:
        """Raw scores of the response. Raises ``RefusedError``, ``UnsupportedError``, ``TeachError``."""
        ...

    async def find_candidates(self, model: str, ids: Sequence[int]) -> str:
        """How the engine scores given candidates; ``ids`` are a few of the vocabulary. Raises ``UnsupportedError``."""
        ...

    def candidate_span(self, candidate_ids: Sequence[Sequence[int]]) -> int:
        """How many of these rows of given candidates fit one request. Raises ``UnsupportedError`` when none do."""
        ...

    async def score_candidates(
        self, model: str, prompt_ids: Sequence[int], response_ids: Sequence[int], candidate_ids: Sequence[Sequence[int]]
    ) -> list[list[float | None]]:
        """Log-probabilities of given candidates: row t belongs to the place of response token t.

        Raises:
            UnsupportedError: the engine cannot.
            RefusedError, TeachError: as for ``score``.
        """
        ...

    async def encode(self, model: str, text: str) -> list[int] | None:
        """Ids of bare text, or ``None`` when the engine has no such route."""
        ...


class NoCandidates:
    """A dialect whose engines score no given candidates."""

    name: str

    async def find_candidates(self, model: str, ids: Sequence[int]) -> str:
        """Refused."""
        self.candidate_span([ids])
        raise AssertionError("unreachable: candidate_span refuses")

    def candidate_span(self, candidate_ids: Sequence[Sequence[int]]) -> int:
        """Refused."""
        raise UnsupportedError(
            f"{self.name}: this kind of engine scores no given candidates; take its own top K "
            "(topk_opd.use_teacher_topk = true), or an SGLang engine as the teacher"
        )

    async def score_candidates(
        self, model: str, prompt_ids: Sequence[int], response_ids: Sequence[int], candidate_ids: Sequence[Sequence[int]]
    ) -> list[list[float | None]]:
        """Refused."""
        self.candidate_span(candidate_ids)
        raise AssertionError("unreachable: candidate_span refuses")


async def listed_model(client: EngineClient, wanted: str) -> tuple[str, int | None]:
    """``(model, max_model_len)`` from ``GET /v1/models``.

    Raises:
        ProbeError: no model is served, or not the wanted one.
    """
    try:
        body = await client.get("/v1/models")
    except RefusedError as error:
        if wanted and error.status in (404, 405):
            return wanted, None
        raise ProbeError(
            f"prm.prm_url: {error}; is this the base address of an inference engine?", ProbeReason.ADDRESS
        ) from error
    data = body.get("data")
    rows = [row for row in data if isinstance(row, dict) and "id" in row] if isinstance(data, list) else []
    if not rows:
        raise ProbeError(f"{client.root_url}/v1/models names no model; set prm.teacher_model", ProbeReason.MODEL)
    row = next((row for row in rows if row.get("id") == wanted), None) if wanted else rows[0]
    if row is None:
        served = ", ".join(str(row.get("id")) for row in rows)
        raise ProbeError(
            f"prm.teacher_model {wanted!r} is not served at {client.root_url}; served are {served}", ProbeReason.MODEL
        )
    length = row.get("max_model_len")
    return str(row["id"]), length if isinstance(length, int) else None


def first_choice(body: Any) -> dict[str, Any]:
    """The one choice of a completion body. Raises ``MissingError`` when there is none."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise MissingError("the engine's answer has no choices")
    return choices[0]


def named_id(token: Any) -> int | None:
    """The id in ``token_id:<n>``, or ``None`` for any other token."""
    named = _NAMED_ID.fullmatch(token) if isinstance(token, str) else None
    return int(named[1]) if named else None


def token_list(body: dict[str, Any]) -> list[int] | None:
    """``tokens`` of a tokenize route's answer, or ``None`` when it holds no list of ids."""
    tokens = body.get("tokens")
    return tokens if isinstance(tokens, list) and all(type(token) is int for token in tokens) else None
