"""Builds the trainer from its configuration and runs it. The leading rank trains, the others follow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import structlog
from hintloop_contract.broker import Broker
from hintloop_contract.config.schema import Config
from hintloop_contract.ids import consumer_name, new_id
from hintloop_contract.listening import listen
from hintloop_contract.opening import open_broker

from hintloop_trainer import (
    durable,
    megatron,  # noqa: F401  # before anything of megatron-core
)
from hintloop_trainer.admission import Admission
from hintloop_trainer.background import Background
from hintloop_trainer.checkpoints import CheckpointStore, Resumable
from hintloop_trainer.deps import LoopDeps
from hintloop_trainer.filling import filling_from
from hintloop_trainer.gate.building import gate_from
from hintloop_trainer.gate.gate import Gate
from hintloop_trainer.learner import Learner
from hintloop_trainer.loop import TrainingLoop
from hintloop_trainer.losses.loading import LoadedLoss, load_loss
from hintloop_trainer.megatron import cpu, parallel
from hintloop_trainer.memory import check as memory_check
from hintloop_trainer.metrics import serving, wandb_run
from hintloop_trainer.metrics.prometheus import PrometheusSink
from hintloop_trainer.metrics.sinks import Sinks, sinks_from
from hintloop_trainer.objective import objective_from
from hintloop_trainer.points import Reached, pass_by
from hintloop_trainer.prm_client import PrmClient
from hintloop_trainer.prm_watch import PrmWatch
from hintloop_trainer.progress import Progress
from hintloop_trainer.publish.engines import EngineControl, EngineHttp
from hintloop_trainer.publish.probe import probe_ids
from hintloop_trainer.publish.protocol import TOLERANCES, Publisher
from hintloop_trainer.publish.reconciler import reconcile_forever
from hintloop_trainer.publish.sglang import SglangControl
from hintloop_trainer.publish.transport import DiskTransport, GroupTransport
from hintloop_trainer.publish.vllm import VllmControl
from hintloop_trainer.ranks import Ranks
from hintloop_trainer.samples import SampleSource
from hintloop_trainer.traces import TraceFile

CONTROLS: dict[str, Callable[[EngineHttp], EngineControl]] = {"vllm": VllmControl, "sglang": SglangControl}


def engine_controls(config: Config, session: aiohttp.ClientSession) -> list[EngineControl]:
    """A control for every policy engine of the configuration; none where weights go to none."""
    if config.publishing.transport == "none":
        return []
    make = CONTROLS[config.rollout.engine]
    key = config.policy.api_key.get_secret_value()
    return [make(EngineHttp(session, url, key, config.publishing.timeout_s)) for url in config.engine_urls]


def make_publisher(config: Config, broker: Broker, engines: Sequence[EngineControl]) -> Publisher:
    """The publisher of the configured policy."""
    publishing = config.publishing
    weights_dir = publishing.weights_dir.resolve()
    weights_dir.mkdir(parents=True, exist_ok=True)
    by_group = publishing.transport == "process_group"
    return Publisher(
        broker,
        engines,
        weights_dir=weights_dir,
        tolerance=publishing.probe_tolerance or TOLERANCES[config.model.dtype],
        keep_versions=publishing.keep_versions,
        transport=GroupTransport(cpu.device(), publishing.timeout_s) if by_group else DiskTransport(),
    )


def train(config: Config, config_dir: Path, stop: threading.Event, reached: Reached = pass_by) -> None:
    """Run the trainer on this rank until ``stop`` (leading rank) or until the leader is done.

    ``reached`` is told by the leading rank when it gets to one of the run's named moments.
    """
    wandb_run.require(config)
    loss = load_loss(config.custom_loss, [config_dir])
    objective = objective_from(config, loss)
    layout = parallel.start_for(config.training, config.training.seed)
    memory_check.check(config, config_dir, leading=layout.rank == 0)
    learner = Learner(config, objective, layout)
    store = CheckpointStore(config.training.checkpoint_dir, learner, config.training.keep_checkpoints, reached)
    ranks = Ranks(Resumable(learner, store), layout)
    if layout.rank == 0:
        if cpu.emulates(learner.dtype):
            structlog.get_logger().warning(
                "model.dtype bfloat16 is emulated on this processor, and far slower than float32; set float32"
            )
        structlog.get_logger().info("method", **objective.effective())
        with durable.alone_in(config.training.checkpoint_dir):
            _lead(config, loss, ranks, learner.arch.vocab_size, stop, reached)
        ranks.stop()
    else:
        ranks.follow()
    parallel.stop()


def _lead(
    config: Config, loss: LoadedLoss, ranks: Ranks, vocab_size: int, stop: threading.Event, reached: Reached
) -> None:
    with Background() as background, ExitStack() as closing:
        broker = background.run(_connect(config))
        closing.callback(lambda: background.run(broker.close()))
        session = background.run(_session())
        closing.callback(lambda: background.run(session.close()))
        publisher = make_publisher(config, broker, engine_controls(config, session))
        closing.callback(lambda: background.run(publisher.close()))
        lead(config, loss, ranks, vocab_size, stop, background, broker, publisher, reached)


async def _connect(config: Config) -> Broker:
    return open_broker(config)


async def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession()


def _source(config: Config, loss: LoadedLoss, broker: Broker, vocab_size: int) -> SampleSource:
    return SampleSource(
        broker,
        consumer_name("trainer"),
        Admission(config, loss.requires if loss.custom else None),
        vocab_size=vocab_size,
        claim_idle_ms=config.redis.claim_idle_ms,
        capacity=config.rollout.rollout_batch_size,
    )


def lead(
    config: Config,
    loss: LoadedLoss,
    ranks: Ranks,
    vocab_size: int,
    stop: threading.Event,
    background: Background,
    broker: Broker,
    publisher: Publisher,
    reached: Reached = pass_by,
    gate: Gate | None = None,
) -> Progress:
    """Run the training loop with its background tasks; returns when it is done or ``stop`` is set.

    ``gate`` stands in for the one that the configuration asks for.
    """
    run, ending, prm = new_id(), asyncio.Event(), PrmClient(config.prm, config.topk_opd.logprobs_dtype)
    gate = gate or gate_from(config, CONTROLS[config.rollout.engine])
    deps = LoopDeps(
        config=config,
        ranks=ranks,
        background=background,
        broker=broker,
        source=_source(config, loss, broker, vocab_size),
        publisher=publisher,
        probe_ids=probe_ids(Path(config.tokenizer_dir), vocab_size),
        sinks=_sinks(config, run, background, ending),
        trace_file=TraceFile(config.training.checkpoint_dir.parent / "teacher_logprobs.jsonl"),
        filling=filling_from(config, loss, vocab_size),
        prm=prm,
        watch=PrmWatch(prm),
        run=run,
        stop=stop,
        ending=ending,
        gate=gate,
        reached=reached,
    )
    return _run(deps)


def _run(deps: LoopDeps) -> Progress:
    """Run the loop between the start and the end of what goes on beside it."""
    background, ending = deps.background, deps.ending
    loop = TrainingLoop(deps)
    loop.resume()
    background.run(deps.source.start())
    background.run(deps.publisher.restore())
    background.keep("reading samples", deps.source.serve(ending))
    interval_s = deps.config.publishing.reconcile_interval_s
    background.keep("reconciling engines", reconcile_forever(deps.publisher, interval_s, ending))
    try:
        return loop.run()
    finally:
        background.loop.call_soon_threadsafe(ending.set)
        background.finish(timeout_s=30)
        background.run(deps.prm.close())
        if deps.gate is not None:
            background.run(deps.gate.close())
        deps.sinks.close()


def _sinks(config: Config, run: str, background: Background, ending: asyncio.Event) -> Sinks:
    """Where figures go; `/metrics` is served until ``ending`` where a port is configured.

    Raises:
        ConfigError: it cannot be listened on, or a package is not installed.
    """
    prometheus = PrometheusSink()
    if config.metrics.port:
        listening = listen(config.metrics.host, config.metrics.port, "metrics")
        background.keep("serving metrics", serving.serve(prometheus.registry, listening, ending))
    return sinks_from(config, run, prometheus)
