"""`hintloop up`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from hintloop_contract.config.arguments import flags_of
from hintloop_contract.errors import DependencyError
from rich.console import Console

from hintloop import funnel
from hintloop.errors import CommandError
from hintloop.local import console, signals
from hintloop.local.display import Display
from hintloop.local.engines import EngineName
from hintloop.local.resolution import Sources
from hintloop.local.stack import Stack, StackOptions, hurry, started
from hintloop.local.state_dir import StateDir

REFRESH_S = 1.0


def run_up(
    files: Sequence[Path],
    settings: Sequence[Path],
    words: Sequence[str],
    engine: str | None,
    prm_engine: str,
    state_dir: Path,
) -> None:
    """Start the stack, keep it until a signal, stop it. A signal is the usual end, so it is no failure.

    ``words``: keys set by the call, ``section.key=value``.
    """
    flags = flags_of(words)
    if engine and flags.get("rollout.engine", engine) != engine:
        raise CommandError(f"--engine {engine} is not --set rollout.engine={flags['rollout.engine']}; give one of them")
    flags |= {"rollout.engine": engine} if engine else {}
    options = StackOptions(Sources(files, settings, flags), cast(EngineName, prm_engine), default_port=True)
    stacks: list[Stack] = []
    display = Display(Console())

    async def serve() -> None:
        async with started(state, options, display.process, stacks.append) as stack:
            for note in stack.notes:
                display.line(note)
            display.line(f"ready: point an OpenAI client at {stack.proxy_url}, model {_model(stack)!r}")
            display.line(f"watch it at {console.url(stack.config)}")
            display.line(f"Ctrl-C stops it; `hintloop status --state-dir {state_dir}` shows the funnel")
            await stack.while_alive(_show_funnel(stack, display))

    with StateDir(state_dir, "up") as state, display:
        try:
            signals.run(serve(), lambda: hurry(stacks))
        except signals.InterruptedRunError:
            display.line("stopped")


def _model(stack: Stack) -> str:
    return stack.config.policy.served_model_name


async def _show_funnel(stack: Stack, display: Display) -> None:
    latest = funnel.Snapshot()
    display.panel(lambda: funnel.funnel_table(latest))
    while True:
        try:
            latest = await funnel.take(stack.broker)
        except DependencyError as error:
            display.line(f"funnel: {error}")
        await asyncio.sleep(REFRESH_S)
