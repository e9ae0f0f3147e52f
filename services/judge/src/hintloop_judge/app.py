"""The judge's HTTP side: hints and scores on demand, by the very functions that judge the stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Response
from hintloop_contract.broker import Broker
from hintloop_contract.config.needs import SignalNeeds
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Judgement
from hintloop_contract.problems import INVALID, ProblemReply, problem
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from hintloop_judge.auth import require_key
from hintloop_judge.backends import Backend, Opinion
from hintloop_judge.bodies import ExchangeBody, HintReply, ScoreReply, votes_of
from hintloop_judge.metrics import JudgeMetrics
from hintloop_judge.routes import ExchangeRoute
from hintloop_judge.unjudged import judgeable


def _refusal(description: str, reason: str, message: str, field: str | None = None) -> dict[str, Any]:
    example = {"detail": problem(reason, message, field)}
    return {
        "model": ProblemReply,
        "description": description,
        "content": {"application/json": {"example": example}},
    }


#: How a route answers besides 200.
REFUSALS: dict[int | str, dict[str, Any]] = {
    401: _refusal("Who asks is not known", "unauthorized", "the API key is missing or unknown"),
    413: _refusal("The body is too large", "too_large", "the body has more than 33554432 bytes"),
    422: _refusal("The body does not fit", INVALID, "next_state: Field required", "next_state"),
    503: _refusal(
        "The judge's engine is away",
        "prm_engine",
        "prm-engine: http://127.0.0.1:30001/v1/chat/completions answered 503: loading",
    ),
}


@dataclass(slots=True)
class JudgeDeps:
    """What the judge works with. Built by ``wiring.build_deps``."""

    config: Config
    broker: Broker
    backend: Backend
    needs: SignalNeeds
    metrics: JudgeMetrics


def router(deps: JudgeDeps) -> APIRouter:
    """``POST /v1/hints`` and ``POST /v1/scores``."""
    routes = APIRouter(dependencies=[Depends(require_key(deps.config.prm.api_keys))], route_class=ExchangeRoute)

    @routes.post("/v1/hints", summary="A hint for an answer, from what followed it", responses=REFUSALS)
    async def hints(body: ExchangeBody) -> HintReply:
        """``hint`` or null, with the votes."""
        opinion = await _judge(deps, body, score=False, hint=True)
        return HintReply(hint=opinion.judgement.hint, **_common(opinion, "hint"))

    @routes.post("/v1/scores", summary="A score for an answer, from what followed it", responses=REFUSALS)
    async def scores(body: ExchangeBody) -> ScoreReply:
        """``score`` in {1, 0, -1} or null, with the votes."""
        opinion = await _judge(deps, body, score=True, hint=False)
        return ScoreReply(score=opinion.judgement.score, **_common(opinion, "score"))

    return routes


async def _judge(deps: JudgeDeps, body: ExchangeBody, *, score: bool, hint: bool) -> Opinion:
    exchange = judgeable(body.exchange())
    if exchange is None:
        return Opinion(Judgement(backend=deps.backend.name, model=deps.backend.model))
    try:
        return await deps.backend.judge(exchange, score=score, hint=hint)
    except DependencyError as error:
        raise HTTPException(503, problem("prm_engine", str(error))) from error


def _common(opinion: Opinion, question: str) -> dict[str, Any]:
    judgement = opinion.judgement
    return {
        "failed": question in opinion.failed,
        "votes": votes_of(opinion),
        "backend": judgement.backend,
        "model": judgement.model,
    }


def prm_part(deps: JudgeDeps) -> dict[str, Any]:
    """The judge's part of ``GET /v1/prm``: its backend, what the engine behind can do, and what is asked of it."""
    opd, prm = deps.config.opd, deps.config.prm
    return {
        **deps.backend.describe(),
        "asks": [name for name, asked in (("score", deps.needs.score), ("hint", deps.needs.hint)) if asked],
        "vote_count": opd.judge_vote_count,
        "quorum": prm.quorum,
        "hint_length": [opd.min_hint_length, opd.max_hint_length],
        "hint_selection": opd.hint_selection,
    }


def make_app(deps: JudgeDeps) -> FastAPI:
    """The judge alone: its routes, ``/v1/prm``, ``/health`` and ``/metrics``."""
    app = FastAPI(title="Hintloop judge", docs_url=None, redoc_url=None)
    app.include_router(router(deps))

    @app.get("/v1/prm", dependencies=[Depends(require_key(deps.config.prm.api_keys))])
    async def prm() -> dict[str, Any]:
        return {"judge": prm_part(deps)}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(deps.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app
