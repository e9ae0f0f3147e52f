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
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field

from hintloop_judge.auth import require_key
from hintloop_judge.backends import Backend, Opinion
from hintloop_judge.conversation import Exchange
from hintloop_judge.metrics import JudgeMetrics
from hintloop_judge.unjudged import judgeable


@dataclass(slots=True)
class JudgeDeps:
    """What the judge works with. Built by ``wiring.build_deps``."""

    config: Config
    broker: Broker
    backend: Backend
    needs: SignalNeeds
    metrics: JudgeMetrics


class ExchangeBody(BaseModel):
    """One answer to judge: chat messages before it, the answer, and the messages after it."""

    model_config = ConfigDict(extra="forbid")

    messages: list[dict[str, Any]]
    """The request's messages."""
    answer: dict[str, Any]
    """The assistant message."""
    next_state: list[dict[str, Any]] = Field(min_length=1)
    """Every message after the answer."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """Tools of the request."""

    def exchange(self) -> Exchange:
        """As the backends take it."""
        return Exchange(tuple(self.messages), self.answer, tuple(self.next_state), tuple(self.tools))


def router(deps: JudgeDeps) -> APIRouter:
    """``POST /v1/hints`` and ``POST /v1/scores``."""
    routes = APIRouter(dependencies=[Depends(require_key(deps.config.prm.api_keys))])

    @routes.post("/v1/hints")
    async def hints(body: ExchangeBody) -> dict[str, Any]:
        """``hint`` or null, with the votes."""
        opinion = await _judge(deps, body, score=False, hint=True)
        return {"hint": opinion.judgement.hint, **_votes(opinion, "hint")}

    @routes.post("/v1/scores")
    async def scores(body: ExchangeBody) -> dict[str, Any]:
        """``score`` in {1, 0, -1} or null, with the votes."""
        opinion = await _judge(deps, body, score=True, hint=False)
        return {"score": opinion.judgement.score, **_votes(opinion, "score")}

    return routes


async def _judge(deps: JudgeDeps, body: ExchangeBody, *, score: bool, hint: bool) -> Opinion:
    exchange = judgeable(body.exchange())
    if exchange is None:
        return Opinion(Judgement(backend=deps.backend.name, model=deps.backend.model))
    try:
        return await deps.backend.judge(exchange, score=score, hint=hint)
    except DependencyError as error:
        raise HTTPException(status_code=503, detail=str(error)) from error


def _votes(opinion: Opinion, question: str) -> dict[str, Any]:
    judgement = opinion.judgement
    votes = [{"score": vote.score, "hint": vote.hint, "failed": vote.failed} for vote in judgement.votes]
    return {
        "failed": question in opinion.failed,
        "votes": votes,
        "backend": judgement.backend,
        "model": judgement.model,
    }


def prm_part(deps: JudgeDeps) -> dict[str, Any]:
    """The judge's part of ``GET /v1/prm``."""
    return {
        "backend": deps.backend.name,
        "model": deps.backend.model,
        "asks": [name for name, asked in (("score", deps.needs.score), ("hint", deps.needs.hint)) if asked],
        "structured_output": getattr(deps.backend, "schema", None),
        "vote_count": deps.config.opd.judge_vote_count,
        "hint_length": [deps.config.opd.min_hint_length, deps.config.opd.max_hint_length],
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
