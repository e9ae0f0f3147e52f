"""The local stack as a whole: what is started in which order, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hintloop_contract.broker import Broker
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_contract.opening import open_broker

from hintloop.errors import StackError
from hintloop.local import console, engines, redis_server, resolution
from hintloop.local.engines import EngineName, EngineOptions
from hintloop.local.http_checks import http_ready
from hintloop.local.processes import Check, Listener, ProcessSpec, Supervisor
from hintloop.local.resolution import Plan, Sources
from hintloop.local.state_dir import StateDir

T = TypeVar("T")

#: A checkpoint of a small model takes seconds on a slow disk; a step that is under way is finished first.
TRAINER_GRACE_S = 120.0
SERVICE_GRACE_S = 20.0
SERVICE_TIMEOUT_S = engines.START_TIMEOUT_S + 60.0
TRAINER_TIMEOUT_S = 300.0
#: The trainer's threads share the cores with the engines': one that spins while it waits takes their time.
TRAINER_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What the user chose. ``prm_engine`` serves the frozen base model.

    ``default_port``: agents expect the proxy on its default port, so it is taken when it is free.
    """

    sources: Sources
    prm_engine: EngineName = "vllm"
    default_port: bool = False


class Stack:
    """A running stack. ``config`` and ``broker`` are usable once it has started."""

    def __init__(self, state: StateDir, options: StackOptions, listener: Listener) -> None:
        self.state = state
        self.options = options
        self.supervisor = Supervisor(state.logs, listener)
        self.listener = listener
        self.notes: list[str] = []
        self._config: Config | None = None
        self._broker: Broker | None = None
        self._socket = redis_server.socket_path(state.path)
        self._console: asyncio.Task[None] | None = None

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        assert self._config is not None, "the stack has not been resolved"
        return self._config

    @property
    def broker(self) -> Broker:
        """The stack's streams."""
        assert self._broker is not None, "the stack has not been started"
        return self._broker

    @property
    def proxy_url(self) -> str:
        """What an OpenAI client takes as its base address."""
        return f"http://{self.config.proxy.host}:{self.config.proxy.port}/v1"

    @property
    def model_dir(self) -> Path:
        """The base model."""
        return Path(self.config.model.student_model_path).resolve()

    async def start(self) -> None:
        """Prepare, start and wait for everything.

        Raises:
            InstallError, StackError, CommandError, ConfigError: the message says which part, and why.
        """
        self.state.mark()
        loaded = self.options.sources.load()
        plan = resolution.plan(
            loaded,
            self.state.path,
            f"unix://{self._socket}",
            self.options.prm_engine,
            default_port=self.options.default_port,
        )
        self.notes = plan.notes
        await self._prepare(plan)
        if plan.redis:
            await self.supervisor.start(redis_server.spec(self.state.path, self._socket))
            await self.supervisor.wait_ready("redis")
        self._broker = open_broker(self.config)
        await self._start_console()
        # Proxy and PRM wait for their engines by themselves; the trainer's first act is to give its weights to one.
        await self._start([*self._engine_specs(plan), *self._service_specs()])
        await self._start([self._trainer_spec()])

    async def _start_console(self) -> None:
        """Start the page. Nothing waits for it, and nothing ends with it."""
        if not console.installed():
            self.notes.append("no console: its package hintloop-console is not installed")
            return
        process = await self.supervisor.start(
            console.spec(self.config, self.options.sources.arguments(self.state.config))
        )

        async def ready() -> None:
            try:
                await process.wait_ready(lambda seen: self.listener(console.NAME, "starting", seen))
            except StackError as error:
                self.listener(console.NAME, "died", str(error).splitlines()[0])
            else:
                self.listener(console.NAME, "ready", console.url(self.config))

        self._console = asyncio.create_task(ready())

    async def _start(self, specs: Sequence[ProcessSpec]) -> None:
        for spec in specs:
            await self.supervisor.start(spec)
        await self.while_alive(self.supervisor.wait_ready(*(spec.name for spec in specs)))

    async def while_alive(self, waiting: Coroutine[Any, Any, T]) -> T:
        """The result of ``waiting``, unless a process dies meanwhile.

        Raises:
            ProcessDiedError: a process ended that nobody asked to.
        """
        watch, wait = asyncio.ensure_future(self.supervisor.watch()), asyncio.ensure_future(waiting)
        try:
            done, _ = await asyncio.wait({watch, wait}, return_when=asyncio.FIRST_COMPLETED)
            if watch in done:
                watch.result()
            return wait.result()
        finally:
            for task in (watch, wait):
                task.cancel()
            await asyncio.gather(watch, wait, return_exceptions=True)

    async def _prepare(self, plan: Plan) -> None:
        """Install engines, find the model, write and load the resolved configuration."""
        sources, values = self.options.sources, plan.values
        config = sources.load().config
        needed: set[EngineName] = set()
        if plan.policy_engine:
            needed.add(config.rollout.engine)
        if plan.prm_engine:
            needed.add(plan.prm_engine_name)
        scripts = engines.find_scripts() if needed or not config.model.student_model_path else Path()
        for engine in sorted(needed):
            self.listener(f"install-{engine}", "starting", "the first time takes minutes")
            await engines.install(self.supervisor, scripts, engine)
            self.listener(f"install-{engine}", "done", "")
        if not config.model.student_model_path:
            self.listener("model", "starting", "")
            model = await engines.prepare_model(self.supervisor, scripts)
            self.listener("model", "done", str(model))
            values = resolution.with_model(values, model)
        resolution.write(self.state.config, values)
        self._config = sources.load(self.state.config).config

    def _engine_specs(self, plan: Plan) -> list[ProcessSpec]:
        config = self.config
        specs: list[ProcessSpec] = []
        if not (plan.policy_engine or plan.prm_engine):
            return specs
        scripts = engines.find_scripts()
        context = resolution.context_length(self.model_dir, config.model.max_seq_len)
        if plan.policy_engine:
            released = config.publishing.weights_dir / "current"
            specs.append(
                engines.spec(
                    scripts,
                    EngineOptions(
                        engine=config.rollout.engine,
                        role="policy",
                        model_dir=engines.weights_to_start_from(released, self.model_dir),
                        port=config.rollout.sglang_port,
                        served_model_name=config.policy.served_model_name,
                        dtype=config.model.dtype,
                        max_model_len=context,
                        lora_rank=config.lora.rank if config.lora.as_adapter else 0,
                    ),
                )
            )
        if plan.prm_engine:
            specs.append(
                engines.spec(
                    scripts,
                    EngineOptions(
                        engine=plan.prm_engine_name,
                        role="prm",
                        model_dir=self.model_dir,
                        port=int(config.prm.root_url.rpartition(":")[2]),
                        served_model_name="prm",
                        dtype=config.model.dtype,
                        max_model_len=context,
                        max_logprobs=max(config.topk_opd.top_k, engines.DEFAULT_MAX_LOGPROBS),
                    ),
                )
            )
        return specs

    def _service_specs(self) -> list[ProcessSpec]:
        config = self.config
        proxy = f"http://{config.proxy.host}:{config.proxy.port}/hintloop/ready"
        prm = f"http://{config.prm.host}:{config.prm.port}/ready"
        return [
            self._service("rollout-proxy", "hintloop_rollout_proxy", http_ready(proxy)),
            self._service("prm", "hintloop.local.prm", http_ready(prm)),
        ]

    def _trainer_spec(self) -> ProcessSpec:
        spec = self._service("trainer", "hintloop_trainer", self._trainer_ready(), TRAINER_TIMEOUT_S, TRAINER_GRACE_S)
        return replace(spec, env=TRAINER_ENVIRONMENT)

    def _service(
        self,
        name: str,
        module: str,
        ready: Check,
        ready_timeout_s: float = SERVICE_TIMEOUT_S,
        stop_grace_s: float = SERVICE_GRACE_S,
    ) -> ProcessSpec:
        command = [sys.executable, "-m", module, *self.options.sources.arguments(self.state.config)]
        return ProcessSpec(name, command, ready, ready_timeout_s, stop_grace_s)

    def _trainer_ready(self) -> Check:
        """The trainer is ready when its weights are released under a version of this run."""
        before: list[int | None] = []

        async def check() -> str | None:
            try:
                current = (await self.broker.weights()).current
            except DependencyError as error:
                return str(error)
            if not before:
                before.append(current)
            return None if current is not None and current != before[0] else "no weights released yet"

        return check

    async def stop(self) -> None:
        """Stop everything: what takes requests and messages first, the streams last."""
        self.listener("stack", "stopping", "the trainer saves what it has; another Ctrl-C ends it at once")
        if self._broker is not None:
            await self._broker.close()
        if self._console is not None:
            self._console.cancel()
        await self.supervisor.stop("rollout-proxy", "prm", "trainer", console.NAME)
        await self.supervisor.stop("policy-engine", "prm-engine")
        await self.supervisor.stop("redis")
        self.listener("stack", "stopped", "")
        if self._socket.parent != self.state.path:
            with contextlib.suppress(OSError):
                self._socket.parent.rmdir()


@contextlib.asynccontextmanager
async def started(
    state: StateDir, options: StackOptions, listener: Listener, on_stack: Callable[[Stack], None] = lambda _: None
) -> AsyncIterator[Stack]:
    """A stack that is up, and down again at the end, however that comes about."""
    stack = Stack(state, options, listener)
    on_stack(stack)
    try:
        await stack.start()
        yield stack
    finally:
        await stack.stop()


def hurry(stacks: Sequence[Stack]) -> None:
    """End the patience with everything that is being stopped."""
    for stack in stacks:
        stack.supervisor.hurry()
