"""Builds the judge from its configuration and runs its stream worker. The only place that knows all parts."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.config.needs import signal_needs
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Stage
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import JUDGED, TURNS
from hintloop_contract.worker import StreamWorker, WorkerOptions
from prometheus_client import CollectorRegistry

from hintloop_judge.app import JudgeDeps
from hintloop_judge.backends import Backend
from hintloop_judge.endpoint import ChatEndpoint
from hintloop_judge.judging import TurnJudge
from hintloop_judge.llm import LlmBackend
from hintloop_judge.metrics import JudgeMetrics
from hintloop_judge.prompts import QUESTIONS, load_prompts
from hintloop_judge.rules import RulesBackend

SERVICE = "judge"
#: Keys that only the llm backend reads.
LLM_ONLY = {
    "opd": ("judge_vote_count", "judge_temperature"),
    "prm": ("judge_model", "judge_prompt_dir", "hint_max_tokens", "hint_temperature", "quorum"),
}


def open_broker(config: Config) -> RedisBroker:
    """The streams on the configured Redis. Contacts nothing."""
    client = connect(config.redis.url.get_secret_value())
    return RedisBroker(client, config.policy.name, turn_retention_s=config.redis.turn_retention_s)


async def build_deps(
    config: Config,
    broker: Broker,
    *,
    directory: Path | None = None,
    registry: CollectorRegistry | None = None,
) -> JudgeDeps:
    """Build the judge. Contacts nothing.

    Args:
        config: the resolved configuration.
        broker: the streams.
        directory: where the configuration file lies; a custom loss is looked up there first.
        registry: where metrics go; a new one when ``None``.

    Raises:
        ConfigError, PromptError: the custom loss or the prompts cannot be used.
    """
    metrics = JudgeMetrics(registry)
    needs = signal_needs(config, directory)
    return JudgeDeps(config, broker, _backend(config, metrics), needs, metrics)


def without_effect(config: Config) -> list[str]:
    """Keys away from their default that the chosen backend does not read, such as ``opd.judge_vote_count``."""
    if config.prm.judge_backend != "rules":
        return []
    changed = []
    for section, names in LLM_ONLY.items():
        values = getattr(config, section)
        fields = type(values).model_fields
        changed += [f"{section}.{name}" for name in names if getattr(values, name) != fields[name].default]
    return changed


def _backend(config: Config, metrics: JudgeMetrics) -> Backend:
    if unread := without_effect(config):
        structlog.get_logger().warning(
            "these keys have no effect under prm.judge_backend = 'rules', which asks no model and has one vote",
            keys=unread,
        )
    if config.prm.judge_backend == "rules":
        return RulesBackend(config.opd)
    prompts = load_prompts(config.prm.judge_prompt_dir)
    backend = LlmBackend(config.opd, config.prm, ChatEndpoint(config.prm), prompts, metrics)
    for question in QUESTIONS:
        if backend.num_asked(question) < config.opd.judge_vote_count:
            key = "opd.judge_temperature" if question == "score" else "prm.hint_temperature"
            structlog.get_logger().warning(
                f"{config.opd.judge_vote_count} {question} votes at temperature 0 are one vote; it is asked once. "
                f"Raise {key} for votes that can differ",
                question=question,
            )
    return backend


async def run_worker(deps: JudgeDeps, stop: asyncio.Event) -> None:
    """Judge the stream until ``stop`` is set."""
    config = deps.config
    handler = TurnJudge(
        deps.broker,
        deps.backend,
        deps.needs,
        deps.metrics,
        drop_without_hint=config.opd.drop_sample_without_hint,
        max_staleness_steps=config.training.max_staleness_steps,
    )
    options = WorkerOptions(
        service=SERVICE,
        stage=Stage.JUDGE,
        source=TURNS,
        sink=JUDGED,
        slots=config.prm.max_concurrency,
        claim_idle_ms=config.redis.claim_idle_ms,
        max_attempts=config.redis.max_attempts,
        sink_bound=config.admission_limit,
    )
    try:
        await _until_there(deps.broker, stop)
        # Learns early what the engine can do; one that is not up yet is met again by the first turn.
        await deps.backend.ready()
        await StreamWorker(deps.broker, options, handler, deps.backend.ready).run(stop)
    finally:
        await deps.backend.close()


async def _until_there(broker: Broker, stop: asyncio.Event) -> None:
    """Create the consumer groups, however long Redis takes to come up."""
    while not stop.is_set():
        try:
            await broker.ensure_groups()
            return
        except DependencyError as error:
            structlog.get_logger().warning("waiting", dependency=error.dependency, detail=error.detail)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1.0)
