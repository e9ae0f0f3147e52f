"""Builds the teacher from its configuration and runs its stream worker. The only place that knows all parts."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.config.needs import signal_needs
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError, DependencyError, HintloopError
from hintloop_contract.messages import Stage
from hintloop_contract.streams import JUDGED, SAMPLES
from hintloop_contract.worker import StreamWorker, WorkerOptions
from prometheus_client import CollectorRegistry

from hintloop_teacher.app import TeacherDeps
from hintloop_teacher.control import null_hint_control
from hintloop_teacher.engine import TeacherEngine
from hintloop_teacher.errors import UnsafeHintError
from hintloop_teacher.http import EngineClient, Patience
from hintloop_teacher.insertion import check_text
from hintloop_teacher.metrics import TeacherMetrics
from hintloop_teacher.policy_engines import DEPENDENCY, PolicyEngines
from hintloop_teacher.rendering import Renderer
from hintloop_teacher.teaching import TurnTeacher
from hintloop_teacher.vocabulary import read_vocabulary

SERVICE = "teacher"
MAX_BACKOFF_S = 5.0
CONTROL_INTERVAL_S = 5.0


async def build_deps(
    config: Config,
    broker: Broker,
    *,
    directory: Path | None = None,
    registry: CollectorRegistry | None = None,
) -> TeacherDeps:
    """Build the teacher. Contacts nothing; the PRM engine is probed by the worker, or at the first request.

    Args:
        config: the resolved configuration.
        broker: the streams.
        directory: where the configuration file lies; a custom loss is looked up there first.
        registry: where metrics go; a new one when ``None``.

    Raises:
        ConfigError: the custom loss, the student's directory or the hint's format cannot be used.
    """
    needs = signal_needs(config, directory)
    vocabulary = read_vocabulary(config.model.student_model_path, config.tokenizer_dir)
    try:
        check_text(config.opd.hint_format, vocabulary)
    except UnsafeHintError as error:
        message = f"opd.hint_format {config.opd.hint_format!r}: {error}, which would end the user's turn; leave it out"
        raise ConfigError(message) from None
    patience = Patience(
        timeout_s=config.prm.timeout_s,
        deadline_s=config.prm.deadline_s,
        circuit_failures=config.prm.circuit_failures,
        circuit_open_s=config.prm.circuit_open_s,
    )
    key = config.prm.prm_api_key.get_secret_value()
    prm = EngineClient(config.prm.teacher_root_url, dependency="prm-engine", api_key=key, patience=patience)

    def policy(address: str) -> EngineClient:
        key = config.policy.api_key.get_secret_value()
        return EngineClient(address, dependency=DEPENDENCY, api_key=key, patience=patience)

    engines = PolicyEngines(policy, config.engine_urls, config.rollout.engine)
    engine = TeacherEngine(prm, config.prm, vocabulary, needs.top_k)
    return TeacherDeps(
        config, broker, needs, Renderer(engines, vocabulary, config.opd.hint_place), engine, TeacherMetrics(registry)
    )


async def run_worker(deps: TeacherDeps, stop: asyncio.Event) -> None:
    """Teach the stream until ``stop`` is set.

    Raises:
        ProbeError: the PRM engine cannot serve as teacher.
    """
    config = deps.config
    handler = TurnTeacher(config, deps.needs, deps.broker, deps.renderer, deps.engine, deps.metrics, deps.recent)
    options = WorkerOptions(
        service=SERVICE,
        stage=Stage.TEACH,
        source=JUDGED,
        sink=SAMPLES,
        slots=config.prm.max_concurrency,
        claim_idle_ms=config.redis.claim_idle_ms,
        max_attempts=config.redis.max_attempts,
        sink_bound=config.training.most_unacknowledged + config.admission_limit,
    )

    async def ready() -> bool:
        # What is neither rendered nor scored waits for no engine.
        if deps.needs.prm_engine and not await deps.engine.ready():
            return False
        return not deps.needs.teacher or await deps.renderer.ready()

    try:
        if deps.needs.prm_engine:
            await _until_there(deps.engine.prepare, stop)
        await _until_there(deps.broker.ensure_groups, stop)
        control = asyncio.create_task(_control(deps, stop))
        try:
            await StreamWorker(deps.broker, options, handler, ready).run(stop)
        finally:
            control.cancel()
            await asyncio.gather(control, return_exceptions=True)
    finally:
        await deps.renderer.close()
        await deps.engine.close()


async def _control(deps: TeacherDeps, stop: asyncio.Event) -> None:
    """The null-hint control at start, and once more when enough turns were seen to run the policy's side."""
    if not deps.needs.prm_engine:
        return
    while not stop.is_set():
        try:
            deps.control = await null_hint_control(deps)
            log = structlog.get_logger()
            (log.warning if deps.control.passed is False else log.info)("null-hint control", **deps.control.as_dict())
            if deps.control.policy.status != "not_run":
                return
        except HintloopError as error:
            structlog.get_logger().warning("null-hint control not run", detail=str(error))
        await asyncio.sleep(CONTROL_INTERVAL_S)
        await deps.recent.enough.wait()


async def _until_there(step: Callable[[], Awaitable[object]], stop: asyncio.Event) -> None:
    """Take a step of the start, however long what it depends on takes to come up."""
    attempt = 0
    while not stop.is_set():
        try:
            await step()
            return
        except DependencyError as error:
            structlog.get_logger().warning("waiting", dependency=error.dependency, detail=error.detail)
        attempt += 1
        wait_s = min(MAX_BACKOFF_S, 0.25 * 2 ** min(attempt, 8)) * random.uniform(0.5, 1.0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait_s)
