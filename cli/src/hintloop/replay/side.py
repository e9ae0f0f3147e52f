"""One configuration's run over a file: its judge and teacher in this process, its trainer beside it.

Everything of it lies in the state directory: streams, checkpoints, weights. No engine is ever given weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hintloop_contract.config import LoadedConfig
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_contract.redis_broker import connect
from hintloop_contract.streams import JUDGED, SAMPLES, TURNS, Stream
from prometheus_client import CollectorRegistry

from hintloop.errors import StackError
from hintloop.funnel import Snapshot, take
from hintloop.local import ports, resolution
from hintloop.local.processes import ProcessSpec, RunningProcess, Supervisor
from hintloop.local.resolution import Sources
from hintloop.local.stack import TRAINER_ENVIRONMENT, TRAINER_GRACE_S, TRAINER_TIMEOUT_S
from hintloop.local.tasks import together
from hintloop.replay.engines import Flags
from hintloop.replay.feeding import Feeder
from hintloop.replay.lines import recorded_turns
from hintloop.replay.recording import RecordingBackend, RecordingBroker
from hintloop.replay.store import Store
from hintloop.replay.until import Until

#: Age counts for nothing in a replay: turns are given as fast as they are trained.
NO_STALENESS_STEPS = 1_000_000
LOOK_S = 0.25
CONSUMER = "replay"
CLAIM_IDLE_MS = 15_000


@dataclass(frozen=True, slots=True)
class Place:
    """What the sides of a replay share."""

    file: Path
    state_dir: Path
    redis_url: str
    until: Until
    store: Store
    supervisor: Supervisor


def own_flags(config: Config, place: Place, side: str) -> Flags:
    """What a replay decides whatever is configured: nothing of a running deployment is touched, nothing is lost to age,
    and what people want to look at is kept."""
    port, grpc_port = ports.choose(2)
    directory = place.state_dir / side
    flags = {
        "redis.url": place.redis_url,
        "redis.wait_replicas": "0",
        "redis.turn_retention_s": "0",
        "redis.claim_idle_ms": str(CLAIM_IDLE_MS),
        "policy.name": policy_of(side),
        "prm.host": "127.0.0.1",
        "prm.port": str(port),
        "prm.grpc_port": str(grpc_port),
        "prm.grpc_address": "",
        "training.checkpoint_dir": str(directory / "checkpoints"),
        "training.max_staleness_steps": str(NO_STALENESS_STEPS),
        "publishing.weights_dir": str(directory / "weights"),
        "publishing.transport": "none",
        "gate.enabled": "false",
        "console.history": "true",
        "opd.log_teacher_logprobs": "true",
        "metrics.port": "0",
        "metrics.wandb_project": "",
    }
    if config.metrics.tensorboard_dir is not None:
        flags["metrics.tensorboard_dir"] = str(directory / "tensorboard")
    return flags


def policy_of(side: str) -> str:
    """The name of a side's streams."""
    return f"replay-{side}"


def decided(loaded: LoadedConfig) -> Flags:
    """What is decided as in the local stack where it is not configured."""
    if "model.dtype" in loaded.origins:
        return {}
    return {"model.dtype": "bfloat16" if resolution.has_gpu() else "float32"}


class Side:
    """One side. ``sources`` are its configuration, all flags included."""

    def __init__(self, name: str, sources: Sources, place: Place) -> None:
        self.name = name
        self._sources = sources
        self._place = place
        self._loaded = sources.load()
        self._broker = RecordingBroker(connect(place.redis_url), policy_of(name), place.store, name)
        self._feeder = Feeder(self.config, self._broker, place.store, name, place.until)
        self._trainer: RunningProcess | None = None
        self._stop = asyncio.Event()

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        return self._loaded.config

    @property
    def directory(self) -> Path:
        """Where the trainer writes."""
        return self._place.state_dir / self.name

    async def look(self) -> Snapshot:
        """How far it is.

        Raises:
            DependencyError: Redis is away.
        """
        return await take(self._broker)

    async def run(self, votes_of: str | None = None) -> None:
        """Run the file to its end. ``votes_of``: a side whose votes are taken where the very same question was asked.

        Raises:
            StackError: a process ended, or the trainer's count is another than ours.
            ConfigError, CommandError: the configuration or the file cannot be used.
        """
        try:
            await self._broker.ensure_groups()
            if votes_of is not None:
                await self._broker.copy_kept("votes", policy_of(votes_of))
            async with self._services() as services:
                if self._place.until is Until.TRAINER:
                    await self._start_trainer(services)
                await together(*(work(self._stop) for work in services), self._to_the_end(), self._watch())
            await self._account()
        finally:
            await self._broker.close()

    @contextlib.asynccontextmanager
    async def _services(self) -> AsyncIterator[list[Callable[[asyncio.Event], Coroutine[Any, Any, None]]]]:
        """The workers of the services that this side needs."""
        from hintloop_judge import wiring as judge

        config, directory, registry = self.config, self._loaded.directory, CollectorRegistry()
        judging = await judge.build_deps(config, self._broker, directory=directory, registry=registry)
        judging.backend = RecordingBackend(judging.backend)
        workers: list[Callable[[asyncio.Event], Coroutine[Any, Any, None]]] = [
            lambda stop: judge.run_worker(judging, stop)
        ]
        if self._place.until is Until.JUDGE:
            yield workers
            return
        from hintloop_teacher import wiring as teacher
        from hintloop_teacher.grpc_server import listening

        teaching = await teacher.build_deps(config, self._broker, directory=directory, registry=registry)
        workers.append(lambda stop: teacher.run_worker(teaching, stop))
        # The trainer asks it for scores of candidates of its own, and for the null-hint control.
        async with listening(teaching):
            yield workers

    async def _start_trainer(self, services: object) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        before = (await self._broker.weights()).current

        async def ready() -> str | None:
            try:
                current = (await self._broker.weights()).current
            except DependencyError as error:
                return str(error)
            return None if current is not None and current != before else "the weights are being read"

        spec = ProcessSpec(
            f"trainer-{self.name}",
            [sys.executable, "-m", "hintloop_trainer", *self._sources.arguments()],
            ready,
            TRAINER_TIMEOUT_S,
            TRAINER_GRACE_S,
        )
        self._trainer = await self._place.supervisor.start(replace(spec, env=TRAINER_ENVIRONMENT))

    async def _to_the_end(self) -> None:
        """Give everything, wait until it is used up, and stop what works."""
        if self._trainer is not None:
            await self._place.supervisor.wait_ready(self._trainer.spec.name)
        feeding = asyncio.ensure_future(self._feeder.run(self._place.file))
        try:
            while not await self._used_up():
                if feeding.done():
                    feeding.result()
                await self._take_notes()
                await asyncio.sleep(LOOK_S)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        if self._trainer is not None:
            await self._place.supervisor.stop(self._trainer.spec.name)
            if self._trainer.code:
                raise self._trainer.died()
        self._stop.set()

    async def _take_notes(self) -> None:
        try:
            await self._broker.read_drops()
            await self._broker.read_trained()
            await self._empty_last()
        except DependencyError:
            return

    async def _empty_last(self) -> None:
        """Take messages out of the stream that no service of this side reads; what they say is in the store."""
        last = {Until.JUDGE: JUDGED, Until.TEACHER: SAMPLES}.get(self._place.until)
        if last is None:
            return
        held = await self._broker.reread(last, CONSUMER, 100)
        while entries := held or await self._broker.read(last, CONSUMER, 100, 1):
            await self._broker.finish(entries)
            held = []

    async def _used_up(self) -> bool:
        """Whether nothing is left that any service would work on."""
        if self._trainer is not None and self._trainer.code is not None:
            return True
        if not self._feeder.finished:
            return False
        try:
            waiting = [await self._length(stream) for stream in (TURNS, JUDGED)]
            left = await self._length(SAMPLES)
            if self._place.until is not Until.TRAINER:
                return not any(waiting) and not left
            idle = (await self._broker.get_status("trainer")).get("phase") == "collecting"
            untrained = await self._broker.untrained()
        except DependencyError:
            return False
        return not any(waiting) and idle and untrained < self.config.rollout.rollout_batch_size

    async def _length(self, stream: Stream) -> int:
        return (await self._broker.counts(stream)).length

    async def _watch(self) -> None:
        """Raise when a process ends that nobody asked to; a trainer that has made its steps may."""
        while not self._stop.is_set():
            for process in self._place.supervisor.running.values():
                made_its_steps = process is self._trainer and process.code == 0
                if process.code is not None and not process.stopping and not made_its_steps:
                    raise process.died()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), LOOK_S)

    async def _account(self) -> None:
        """Read what is left to be read, and see that every turn has come to one end.

        Raises:
            StackError: the trainer counts other turns than we do.
        """
        while await self._broker.read_drops() or await self._broker.read_trained():
            pass
        store, place = self._place.store, self._place
        if place.until is Until.TRAINER:
            await self._note_left()
        self._require_whole()
        if place.until is Until.TRAINER:
            trained = store.count(self.name, "sample IS NOT NULL AND reason IS NULL AND left_over IS NULL")
            counted = int((await self._broker.get_status("trainer")).get("trained") or 0)
            if trained != counted:
                raise StackError(
                    f"the trainer of side {self.name} counts {counted} trained turns; {trained} came to it and were "
                    f"neither dropped nor left. Begin again with --fresh ({place.state_dir / 'logs'} may tell more)"
                )
        self._place.store.set_note(self.name, "done", "yes")

    def _require_whole(self) -> None:
        """See that no turn vanished on its way: Redis, or the store, may have lost what they had written.

        Raises:
            StackError: one did.
        """
        column = "judgement" if self._place.until is Until.JUDGE else "sample"
        lost = self._place.store.ids(self.name, f"{column} IS NULL AND reason IS NULL AND left_over IS NULL")
        if lost:
            raise StackError(
                f"side {self.name}: {len(lost)} turn(s) came to no end, {lost[0]!r} among them: streams or findings in "
                f"{self._place.state_dir} were lost; begin again with --fresh"
            )

    async def _note_left(self) -> None:
        """What the trainer did not use up, and what was never given because it had made its steps."""
        store, config = self._place.store, self.config
        why = f"fewer than rollout.rollout_batch_size = {config.rollout.rollout_batch_size} were left"
        if not self._feeder.finished:
            why = f"training.max_steps = {config.training.max_steps} were made"
        for stream in (TURNS, JUDGED, SAMPLES):
            store.left(self.name, await self._broker.unused(stream), why)
        if not self._feeder.finished:
            for number, turn in recorded_turns(self._place.file, store.num_fed_lines(self.name)):
                store.expect(self.name, turn.turn_id, number)
                store.left(self.name, [turn.turn_id], why)
