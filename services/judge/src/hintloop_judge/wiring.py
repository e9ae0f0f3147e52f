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
from hintloop_contract.streams import JUDGED, TURNS
from hintloop_contract.worker import StreamWorker, WorkerOptions
from prometheus_client import CollectorRegistry

from hintloop_judge.app import JudgeDeps
from hintloop_judge.backends import Backend
from hintloop_judge.cache import VoteCache
from hintloop_judge.composed import RulesThenLlm
from hintloop_judge.endpoint import ChatEndpoint
from hintloop_judge.judging import TurnJudge
from hintloop_judge.llm import LlmBackend, equal_votes
from hintloop_judge.metrics import JudgeMetrics
from hintloop_judge.prompts import load_prompts
from hintloop_judge.rules import RulesBackend

SERVICE = "judge"
#: Keys that only a model's votes read.
LLM_ONLY: dict[str, tuple[str, ...]] = {
    "opd": ("judge_vote_count", "judge_temperature", "hint_selection", "allow_quoted_hints"),
    "prm": (
        "judge_url",
        "judge_api_key",
        "judge_model",
        "judge_prompt_dir",
        "judge_cache_s",
        "judge_cache_entries",
        "hint_max_tokens",
        "hint_temperature",
        "quorum",
    ),
}
#: Keys that only the rules read.
RULES_ONLY: dict[str, tuple[str, ...]] = {"prm": ("rules",)}


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
    return JudgeDeps(config, broker, _backend(config, broker, metrics), needs, metrics)


def without_effect(config: Config) -> list[str]:
    """Keys away from their default that the chosen backend does not read, such as ``opd.judge_vote_count``."""
    by_backend: dict[str, dict[str, tuple[str, ...]]] = {"rules": LLM_ONLY, "llm": RULES_ONLY}
    unread = by_backend.get(config.prm.judge_backend, {})
    changed = []
    for section, names in unread.items():
        values = getattr(config, section)
        fields = type(values).model_fields
        default = {name: fields[name].get_default(call_default_factory=True) for name in names}
        changed += [f"{section}.{name}" for name in names if getattr(values, name) != default[name]]
    return changed


def _backend(config: Config, broker: Broker, metrics: JudgeMetrics) -> Backend:
    prm, log = config.prm, structlog.get_logger()
    if unread := without_effect(config):
        why = "asks no model and has one vote" if prm.judge_backend == "rules" else "leaves tools to the model"
        log.warning(
            f"these keys have no effect under prm.judge_backend = '{prm.judge_backend}', which {why}", keys=unread
        )
    rules = RulesBackend(config.opd, prm.rules)
    if prm.judge_backend == "rules":
        return rules
    for note in equal_votes(config.opd, prm):
        log.warning(note)
    cache = VoteCache(broker, ttl_s=prm.judge_cache_s, max_entries=prm.judge_cache_entries)
    prompts = load_prompts(prm.judge_prompt_dir)
    llm = LlmBackend(config.opd, prm, ChatEndpoint(prm, metrics), prompts, metrics, cache)
    return llm if prm.judge_backend == "llm" else RulesThenLlm(rules, llm, metrics)


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
