"""What a dialect is: ids in, raw scores out. Checking is `forced`'s, retries are `http`'s."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hintloop_teacher.errors import MissingError, ProbeError, RefusedError
from hintloop_teacher.forced import RawScores
from hintloop_teacher.http import EngineClient


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine says of itself. ``max_input_len``: most tokens of one request, ``None`` when it does not say."""

    dialect: str
    version: str | None
    model: str
    max_input_len: int | None


class Dialect(Protocol):
    """One kind of engine."""

    name: str
    proves_ids: bool
    """Its answers name the id of each token that was scored."""

    async def facts(self, wanted_model: str) -> EngineFacts:
        """Model (``wanted_model``, or the first) and limits. Raises ``DependencyError``, ``ProbeError``."""
        ...

    async def score(self, model: str, prompt_ids: Sequence[int], response_ids: Sequence[int], top_k: int) -> RawScores:
        """Score ``response_ids`` behind ``prompt_ids`` (at least one). Raises ``RefusedError``, ``TeachError``."""
        ...

    async def encode(self, model: str, text: str) -> list[int] | None:
        """Ids of bare text, or ``None`` when the engine has no such route."""
        ...


async def listed_model(client: EngineClient, wanted: str) -> tuple[str, int | None]:
    """``(model, max_model_len)`` from ``GET /v1/models``.

    Raises:
        ProbeError: no model is served, or not the wanted one.
    """
    try:
        body = await client.get("/v1/models")
    except RefusedError as error:
        raise ProbeError(f"prm.prm_url: {error}; is this the base address of an inference engine?") from error
    rows = [row for row in body.get("data", []) if isinstance(row, dict)] if isinstance(body, dict) else []
    if not rows:
        raise ProbeError(f"{client.root_url}/v1/models names no model; set prm.teacher_model")
    row = next((row for row in rows if row.get("id") == wanted), None) if wanted else rows[0]
    if row is None:
        served = ", ".join(str(row.get("id")) for row in rows)
        raise ProbeError(f"prm.teacher_model {wanted!r} is not served at {client.root_url}; served are {served}")
    length = row.get("max_model_len")
    return str(row["id"]), length if isinstance(length, int) else None


def first_choice(body: Any) -> dict[str, Any]:
    """The one choice of a completion body. Raises ``MissingError`` when there is none."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise MissingError("the engine's answer has no choices")
    return choices[0]
