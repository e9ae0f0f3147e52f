"""The teacher's HTTP side: forced log-probabilities on demand, by the very scorer that the stream uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Response
from hintloop_contract.broker import Broker
from hintloop_contract.config.needs import SignalNeeds
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field

from hintloop_teacher.auth import require_key
from hintloop_teacher.control import ControlReport, RecentTurns
from hintloop_teacher.engine import TeacherEngine
from hintloop_teacher.errors import ProbeError, RefusedError, TeachError
from hintloop_teacher.forced import ForcedScores
from hintloop_teacher.metrics import TeacherMetrics
from hintloop_teacher.rendering import Renderer

Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]


@dataclass(slots=True)
class TeacherDeps:
    """What the teacher works with. Built by ``wiring.build_deps``."""

    config: Config
    broker: Broker
    needs: SignalNeeds
    renderer: Renderer
    engine: TeacherEngine
    metrics: TeacherMetrics
    recent: RecentTurns = field(default_factory=RecentTurns)
    control: ControlReport | None = None


class ForcedBody(BaseModel):
    """Score ``response_ids`` (T tokens) behind ``prompt_ids``, with ``top_k`` candidates per token."""

    model_config = ConfigDict(extra="forbid")

    prompt_ids: Ids
    """Token ids before the response."""
    response_ids: Ids
    """Token ids to score."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Candidates per token; 0 for none."""


class ForcedReply(BaseModel):
    """Nats at temperature 1: ``logprobs`` [T]; ``topk_ids`` and ``topk_logprobs`` [T, K], ``tail_logprobs`` [T]."""

    logprobs: list[float]
    topk_ids: list[list[int]] | None = None
    topk_logprobs: list[list[float]] | None = None
    tail_logprobs: list[float] | None = None
    model: str


def router(deps: TeacherDeps) -> APIRouter:
    """``POST /v1/forced_logprobs``."""
    routes = APIRouter(dependencies=[Depends(require_key(deps.config.prm.api_keys))])

    @routes.post("/v1/forced_logprobs")
    async def forced_logprobs(body: ForcedBody) -> ForcedReply:
        """Score given tokens."""
        try:
            if deps.engine.report is None:
                await deps.engine.prepare()
            scorer = deps.engine.scorer
            scores = await scorer.score(body.prompt_ids, body.response_ids, body.top_k)
        except TeachError as error:
            raise HTTPException(422, {"reason": str(error.reason), "message": str(error)}) from error
        except RefusedError as error:
            raise HTTPException(422, {"reason": "refused", "message": str(error)}) from error
        except (DependencyError, ProbeError) as error:
            raise HTTPException(503, {"reason": "prm_engine", "message": str(error)}) from error
        return _reply(scores, scorer.facts.model)

    return routes


def _reply(scores: ForcedScores, model: str) -> ForcedReply:
    def listed(array: Any) -> Any:
        return None if array is None else array.tolist()

    return ForcedReply(
        logprobs=scores.logprobs.tolist(),
        topk_ids=listed(scores.topk_ids),
        topk_logprobs=listed(scores.topk_logprobs),
        tail_logprobs=listed(scores.tail_logprobs),
        model=model,
    )


def prm_part(deps: TeacherDeps) -> dict[str, Any]:
    """The teacher's part of ``GET /v1/prm``: what the probe found, or that it is still to come."""
    report = deps.engine.report
    if report is None:
        return {"probed": False, "needed": deps.needs.teacher}
    return {"probed": True, "needed": deps.needs.teacher, **report.as_dict()}


def make_app(deps: TeacherDeps) -> FastAPI:
    """The teacher alone: its routes, ``/v1/prm``, ``/health`` and ``/metrics``."""
    app = FastAPI(title="Hintloop teacher", docs_url=None, redoc_url=None)
    app.include_router(router(deps))

    @app.get("/v1/prm", dependencies=[Depends(require_key(deps.config.prm.api_keys))])
    async def prm() -> dict[str, Any]:
        return {"teacher": prm_part(deps)}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(deps.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app
