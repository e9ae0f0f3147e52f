"""The teacher's HTTP side: forced log-probabilities on demand, by the very scorer that the stream uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Response
from hintloop_contract.broker import Broker
from hintloop_contract.config.needs import SignalNeeds
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError, HintloopError
from hintloop_contract.problems import problem
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from hintloop_teacher.auth import require_key
from hintloop_teacher.bodies import PRM_EXAMPLE, PROBLEMS, ForcedBody, ForcedReply, reply
from hintloop_teacher.control import ControlReport, RecentTurns, null_hint_control
from hintloop_teacher.engine import TeacherEngine
from hintloop_teacher.errors import (
    MisalignedError,
    MissingError,
    ProbeError,
    RefusedError,
    TeachError,
    UnsupportedError,
    WrongIdsError,
)
from hintloop_teacher.metrics import TeacherMetrics
from hintloop_teacher.rendering import Renderer
from hintloop_teacher.routes import ScoringRoute


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


def router(deps: TeacherDeps) -> APIRouter:
    """``POST /v1/forced_logprobs`` and ``POST /v1/null_hint_control``."""
    routes = APIRouter(dependencies=[Depends(require_key(deps.config.prm.api_keys))], route_class=ScoringRoute)

    @routes.post("/v1/forced_logprobs", summary="Log-probabilities of given tokens", responses=PROBLEMS)
    async def forced_logprobs(body: ForcedBody) -> ForcedReply:
        """What the teacher says of tokens that it did not sample, at temperature 1."""
        try:
            scorer = await deps.engine.prepared()
            if body.model is not None and body.model != scorer.facts.model:
                raise UnsupportedError(f"model: {body.model!r:.80} is asked, {scorer.facts.model!r} teaches here")
            scores = await scorer.score(body.prompt_ids, body.response_ids, body.top_k, body.candidate_ids)
        except HintloopError as error:
            raise _problem(error) from error
        return reply(scores, scorer.facts)

    @routes.post("/v1/null_hint_control", summary="Run the null-hint control now", responses=PROBLEMS)
    async def control() -> dict[str, Any]:
        """Un-hinted ids on both engines against scores of the same weights; `passed` is null when nothing compared."""
        try:
            deps.control = await null_hint_control(deps)
        except HintloopError as error:
            raise _problem(error) from error
        return deps.control.as_dict()

    return routes


def _problem(error: HintloopError) -> HTTPException:
    status, reason = _answer_to(error)
    return HTTPException(status, problem(reason, str(error)))


def _answer_to(error: HintloopError) -> tuple[int, str]:
    """Status and reason. What is missing or shifted is the engine's doing, unless the ids were wrong as sent."""
    if isinstance(error, MissingError | MisalignedError) and not isinstance(error, WrongIdsError):
        return 502, str(error.reason)
    if isinstance(error, TeachError):
        return 422, str(error.reason)
    if isinstance(error, UnsupportedError | RefusedError):
        return 422, "unsupported" if isinstance(error, UnsupportedError) else "refused"
    if isinstance(error, DependencyError | ProbeError):
        return 503, "prm_engine"
    raise error


def prm_part(deps: TeacherDeps) -> dict[str, Any]:
    """The teacher's part of ``GET /v1/prm``: what the probe found, or that it is still to come."""
    report = deps.engine.report
    found = {} if report is None else report.as_dict()
    control = None if deps.control is None else deps.control.as_dict()
    problem = deps.engine.problem
    return {
        "probed": report is not None,
        "needed": deps.needs.prm_engine,
        **found,
        "problem": None if problem is None else str(problem),
        "problem_reason": None if problem is None else str(problem.reason),
        "control": control,
    }


def make_app(deps: TeacherDeps) -> FastAPI:
    """The teacher alone: its routes, ``/v1/prm``, ``/health`` and ``/metrics``."""
    app = FastAPI(title="Hintloop teacher", description="OpenAPI at `/openapi.json`.", redoc_url=None)
    app.include_router(router(deps))

    @app.get(
        "/v1/prm",
        summary="What the PRM engine can do",
        dependencies=[Depends(require_key(deps.config.prm.api_keys))],
        responses={200: {"content": {"application/json": {"example": PRM_EXAMPLE}}}},
    )
    async def prm() -> dict[str, Any]:
        """What the probe at start found, and the last null-hint control."""
        return {"teacher": prm_part(deps)}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(deps.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app
