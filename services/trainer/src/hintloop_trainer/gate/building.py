"""The gate that a configuration asks for."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError

from hintloop_trainer.gate.answerers import AnsweringProcess
from hintloop_trainer.gate.engine import EngineAnswerer
from hintloop_trainer.gate.gate import Gate
from hintloop_trainer.gate.messages import Prompt, Setup
from hintloop_trainer.gate.probes import read_probes
from hintloop_trainer.publish.engines import EngineControl, EngineHttp
from hintloop_trainer.publish.protocol import TOLERANCES


def gate_from(config: Config, make_control: Callable[[EngineHttp], EngineControl]) -> Gate | None:
    """The gate, or ``None`` where there is none; ``make_control`` is the dialect's of an engine that answers.

    Raises:
        ConfigError: the probe file cannot be used, or `gate.engine_url` is an engine that serves agents.
    """
    section = config.gate
    if not section.enabled:
        return None
    probes = read_probes(section.probe_file)
    base = Path(config.model.student_model_path).resolve()
    setup = Setup(
        base=str(base),
        tokenizer=str(Path(config.tokenizer_dir).resolve()),
        dtype=config.model.dtype,
        device=section.device,
        temperature=config.rollout.temperature if section.temperature is None else section.temperature,
        max_new_tokens=section.max_new_tokens,
        seed=section.seed,
        batch_size=section.batch_size,
        prompts=[Prompt(probe.messages, probe.prompt_ids) for probe in probes],
    )
    process = AnsweringProcess(setup, section.timeout_s)
    if not section.engine_url:
        return Gate(section, probes, process, base)
    _refuse_serving(config)
    tolerance = config.publishing.probe_tolerance or TOLERANCES[config.model.dtype]

    def make_http(session: aiohttp.ClientSession) -> EngineHttp:
        key = config.policy.api_key.get_secret_value()
        return EngineHttp(session, section.engine_url, key, config.publishing.timeout_s)

    dialect = config.rollout.engine
    answerer = EngineAnswerer(make_control, make_http, process, setup, dialect=dialect, tolerance=tolerance)
    return Gate(section, probes, answerer, base)


def _refuse_serving(config: Config) -> None:
    """The configuration refuses equal addresses; here two names of one engine are found out."""
    theirs = {place: url for url in config.engine_urls for place in _places(url)}
    for place in _places(config.gate.engine_url):
        if place in theirs:
            raise ConfigError(
                f"gate.engine_url {config.gate.engine_url!r} is {theirs[place]!r}, an engine of the policy: agents "
                "would be answered by weights that are not released; give an engine of its own, or leave it empty"
            )


def _places(url: str) -> set[tuple[str, int]]:
    """IP addresses and port of an address; none when its name does not resolve, which shows when it is spoken to."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {(str(info[4][0]), port) for info in found}
