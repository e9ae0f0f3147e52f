"""Engines of a replay: those of the configuration when they answer, else started as the local stack does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from hintloop_contract.config import LoadedConfig
from hintloop_contract.config.needs import signal_needs
from hintloop_contract.config.schema import Config

from hintloop.errors import CommandError
from hintloop.local import engines, ports, resolution
from hintloop.local.engines import EngineName, EngineOptions
from hintloop.local.processes import Supervisor
from hintloop.replay.until import Until

Flags = dict[str, str]

ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class EngineNeeds:
    """What a side asks of engines. ``others``: keys of addresses that have to answer, and cannot be started here."""

    policy: bool
    prm: bool
    others: tuple[tuple[str, str, str], ...] = ()
    """Key, address and API key."""


def engine_needs(config: Config, directory: Path, until: Until) -> EngineNeeds:
    """The policy engine renders for the teacher; the PRM engine judges, teaches, or does both.

    Raises:
        ConfigError: the custom loss is not found.
    """
    signal, prm = signal_needs(config, directory), config.prm
    judges = prm.judge_backend != "rules"
    teaches = until is not Until.JUDGE and signal.prm_engine
    others = []
    if judges and prm.judge_url is not None:
        key = prm.judge_api_key.get_secret_value() or prm.prm_api_key.get_secret_value()
        others.append(("prm.judge_url", prm.judge_url, key))
    if teaches and prm.teacher_url is not None:
        others.append(("prm.teacher_url", prm.teacher_url, prm.prm_api_key.get_secret_value()))
    return EngineNeeds(
        policy=until is not Until.JUDGE and signal.teacher,
        prm=(judges and prm.judge_url is None) or (teaches and prm.teacher_url is None),
        others=tuple(others),
    )


async def answers(address: str, key: str = "") -> bool:
    """Whether a server answers there at all; what it says does not matter."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"{address.removesuffix('/v1')}/v1/models"
    try:
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, headers=headers) as response:
            return response.status < 500
    except (aiohttp.ClientError, TimeoutError):
        return False


def loopback_port(address: str) -> int | None:
    """The port of an address on this machine."""
    parts = urlsplit(address)
    return parts.port if parts.hostname in resolution.LOOPBACK else None


class Engines:
    """Engines that this replay started; sides that want the same one share it."""

    def __init__(self, supervisor: Supervisor, prm_engine: EngineName, max_logprobs: int) -> None:
        """``max_logprobs``: most candidates a token that any side asks of the PRM engine."""
        self._supervisor = supervisor
        self._prm_engine = prm_engine
        self._max_logprobs = max_logprobs
        self._running: dict[EngineOptions, str] = {}
        self._num_started = 0

    async def flags(self, loaded: LoadedConfig, until: Until) -> Flags:
        """Have the engines that a side needs; what of its configuration is decided here.

        Raises:
            CommandError: a configured engine does not answer and cannot be started here.
            InstallError, StackError: one could not be started.
        """
        config, needs = loaded.config, engine_needs(loaded.config, loaded.directory, until)
        for key, address, api_key in needs.others:
            if not await answers(address, api_key):
                raise CommandError(f"{key} = {address!r} does not answer; start it, or correct {key}")
        policy_port = await self._policy_port(loaded) if needs.policy else None
        prm_port = await self._prm_port(loaded) if needs.prm else None
        flags: Flags = {}
        wanted: list[EngineOptions] = []
        model = Path(config.model.student_model_path)
        if policy_port is not None or prm_port is not None or not config.model.student_model_path:
            scripts = engines.find_scripts()
            if not config.model.student_model_path:
                model = await engines.prepare_model(self._supervisor, scripts)
                flags["model.student_model_path"] = str(model)
        if policy_port is not None:
            wanted.append(self._policy(config, model.resolve(), policy_port))
            flags["policy.engines"] = json.dumps([f"http://127.0.0.1:{wanted[-1].port}"])
        if prm_port is not None:
            wanted.append(self._prm(config, model.resolve(), prm_port))
            flags["prm.prm_url"] = f"http://127.0.0.1:{wanted[-1].port}"
            flags["prm.engine"] = wanted[-1].engine
        await self._have(wanted)
        return flags

    async def _policy_port(self, loaded: LoadedConfig) -> int | None:
        """Where a policy engine is to be started (0: anywhere); ``None`` where a configured one answers."""
        config, origins = loaded.config, loaded.origins
        configured = [key for key in ("policy.engines", "rollout.sglang_host", "rollout.sglang_port") if key in origins]
        if not configured:
            return 0
        key = config.policy.api_key.get_secret_value()
        for address in config.engine_urls:
            if await answers(address, key):
                return None
        return _startable(config.engine_urls, " or ".join(configured))

    async def _prm_port(self, loaded: LoadedConfig) -> int | None:
        config = loaded.config
        if "prm.prm_url" not in loaded.origins:
            return 0
        if await answers(config.prm.root_url, config.prm.prm_api_key.get_secret_value()):
            return None
        return _startable([config.prm.root_url], "prm.prm_url")

    def _policy(self, config: Config, model: Path, port: int) -> EngineOptions:
        # It renders prompts, and answers no one: the student's first weights do.
        return self._known(
            EngineOptions(
                engine=config.rollout.engine,
                role="policy",
                model_dir=model,
                port=port,
                served_model_name=config.policy.served_model_name,
                dtype=config.model.dtype,
                max_model_len=resolution.context_length(model, config.model.max_seq_len),
            )
        )

    def _prm(self, config: Config, model: Path, port: int) -> EngineOptions:
        named = config.prm.engine
        return self._known(
            EngineOptions(
                engine="sglang" if named == "sglang" else "vllm" if named == "vllm" else self._prm_engine,
                role="prm",
                model_dir=model,
                port=port,
                served_model_name="prm",
                dtype=config.model.dtype,
                max_model_len=resolution.context_length(model, config.model.max_seq_len),
                max_logprobs=max(self._max_logprobs, engines.DEFAULT_MAX_LOGPROBS),
            )
        )

    def _known(self, options: EngineOptions) -> EngineOptions:
        """The same engine where one runs already that may be at any port."""
        if options.port:
            return options
        same = [known for known in self._running if replace(known, port=0) == options]
        return same[0] if same else replace(options, port=ports.choose(1)[0])

    async def _have(self, wanted: Sequence[EngineOptions]) -> None:
        """Start what is missing, and stop what no one wants any more."""
        unwanted = [options for options in self._running if options not in wanted]
        await self._supervisor.stop(*(self._running.pop(options) for options in unwanted))
        missing = [options for options in wanted if options not in self._running]
        scripts = engines.find_scripts() if missing else Path()
        for engine in sorted({options.engine for options in missing}):
            self._supervisor.listener(f"install-{engine}", "starting", "the first time takes minutes")
            await engines.install(self._supervisor, scripts, engine)
            self._supervisor.listener(f"install-{engine}", "done", "")
        for options in missing:
            self._num_started += 1
            spec = engines.spec(scripts, options)
            name = spec.name if self._num_started <= 2 else f"{spec.name}-{self._num_started}"
            await self._supervisor.start(replace(spec, name=name))
            self._running[options] = name
        await self._supervisor.wait_ready(*(self._running[options] for options in missing))


def _startable(addresses: Sequence[str], keys: str) -> int:
    """The port of the one address that is this machine's own.

    Raises:
        CommandError: there are several, or it is elsewhere.
    """
    port = loopback_port(addresses[0]) if len(addresses) == 1 else None
    if port is None:
        shown = ", ".join(addresses)
        raise CommandError(f"{keys}: {shown} does not answer; start it, or leave {keys} out to have one started here")
    return ports.require_free("127.0.0.1", port, keys)
