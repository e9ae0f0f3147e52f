"""The console of a local stack: what it is started with, and its address. The stack does not depend on it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from hintloop_contract.config import LoadedConfig
from hintloop_contract.config.schema import Config

from hintloop.errors import CommandError
from hintloop.local import ports
from hintloop.local.http_checks import http_ready
from hintloop.local.processes import ProcessSpec

NAME, MODULE, DATABASE = "console", "hintloop_console", "console.sqlite3"
READY_TIMEOUT_S = 180.0
GRACE_S = 10.0
#: Addresses that stand for all of a machine's; a browser here takes this machine's own.
_ALL = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


def installed() -> bool:
    """Whether the console's package is here."""
    return find_spec(MODULE) is not None


def port(loaded: LoadedConfig) -> tuple[int, str]:
    """The configured port when it is free, else another; and a note in the second case."""
    section = loaded.config.console
    try:
        if section.port == 0:
            return ports.choose(1, section.host)[0], ""
        return ports.choose_near(section.host, section.port, "console.port")
    except CommandError as error:
        # The console says so itself when it cannot listen there, and the stack goes on without it.
        return section.port, f"console.host {section.host!r}: {error}"


def doctor_command(state_dir: str) -> list[str]:
    """How the console runs doctor on this very stack."""
    return [sys.executable, "-m", "hintloop", "doctor", "--json", "--state-dir", state_dir]


def url(config: Config) -> str:
    """Where a browser finds it."""
    host = _ALL.get(config.console.host, config.console.host)
    return f"http://{f'[{host}]' if ':' in host and '[' not in host else host}:{config.console.port}/"


def spec(config: Config, arguments: Sequence[str]) -> ProcessSpec:
    """Its process, started with ``arguments``."""
    command = [sys.executable, "-m", MODULE, *arguments]
    # Below the services: it must not take their time where cores are few.
    low = ["nice", "-n", "10", *command] if sys.platform == "linux" else command
    return ProcessSpec(NAME, low, http_ready(url(config) + "health"), READY_TIMEOUT_S, GRACE_S, vital=False)


def values(loaded: LoadedConfig, state_dir: str) -> tuple[dict[str, Any], str]:
    """What the stack decides of `[console]`, and a note when the port is another than the configured one."""
    chosen, note = port(loaded)
    decided: dict[str, Any] = {"port": chosen}
    # Written in any case: `hintloop report` finds it there once the stack has stopped.
    configured = "console.database" in loaded.origins
    decided["database"] = str(loaded.config.console.database.absolute()) if configured else f"{state_dir}/{DATABASE}"
    if "console.doctor_command" not in loaded.origins:
        decided["doctor_command"] = doctor_command(state_dir)
    return decided, note
