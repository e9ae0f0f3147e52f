"""`hintloop replay run`: what is started in which order, and what becomes of an interruption."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO, cast

import structlog
import typer
from hintloop_contract.config import LoadedConfig
from hintloop_contract.config.schema import LoggingSection
from hintloop_contract.errors import DependencyError
from hintloop_contract.logs import configure_logging
from rich.console import Console

from hintloop import funnel
from hintloop.errors import CommandError
from hintloop.local import redis_server, signals
from hintloop.local.display import Display
from hintloop.local.engines import EngineName
from hintloop.local.processes import Supervisor
from hintloop.local.resolution import Sources
from hintloop.local.state_dir import StateDir
from hintloop.replay import engines
from hintloop.replay.lines import Checked, checked
from hintloop.replay.manifest import Manifest
from hintloop.replay.outputs import write_outputs
from hintloop.replay.side import Place, Side, decided, own_flags
from hintloop.replay.store import Store
from hintloop.replay.until import Until

REFRESH_S = 1.0
#: How often a line tells how far it is, where there is no terminal.
TELL_S = 15.0
SIDES = ("a", "b")


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What the user chose. ``compare``: an overlay over the same files that makes the second side."""

    file: Path
    files: Sequence[Path]
    settings: Sequence[Path]
    until: Until
    compare: Path | None
    out: Path
    prm_engine: str
    fresh: bool
    as_json: bool

    @property
    def sources(self) -> dict[str, Sources]:
        """The configuration of each side."""
        found = {"a": Sources(self.files, self.settings)}
        if self.compare is not None:
            found["b"] = Sources([*self.files, self.compare], self.settings)
        return found


def run_replay(options: ReplayOptions) -> None:
    """Run the file and write what was found; goes on where an interrupted run of the same ended.

    Raises:
        CommandError, ConfigError: the file or the configuration cannot be used.
        StackError, InstallError: a part cannot be started, or ended.
        InterruptedRunError: a signal came.
    """
    _require_inputs_elsewhere(options)
    facts = checked(options.file)
    _require_usable(facts)
    loaded = {side: sources.load() for side, sources in options.sources.items()}
    manifest = Manifest.of(facts, options.until, loaded)
    display = Display(Console(stderr=options.as_json))
    with StateDir(options.out, "replay") as state, display:
        if options.fresh:
            state.clear()
        state.mark()
        manifest.require_same(state.path)
        with Store(state.path / "replay.sqlite3") as store:
            _work(options, state, store, display, loaded)
            summary = write_outputs(options, state.path, store, facts, loaded)
    if options.as_json:
        typer.echo(json.dumps(summary.as_dict(), indent=2))
    else:
        display.console.print(summary.tables())
    display.line(f"written: {state.path / 'report.html'}, report.md, summary.json and results-*.jsonl")


def _require_inputs_elsewhere(options: ReplayOptions) -> None:
    """What is read must not lie where results are written, and what ``--fresh`` empties."""
    overlay = [options.compare] if options.compare is not None else []
    for path in (options.file, *options.files, *options.settings, *overlay):
        if options.out.resolve() in path.resolve().parents:
            raise CommandError(
                f"{str(path)!r} lies in --out {str(options.out)!r}, which is the run's own: its results could replace "
                "the file, and --fresh would delete it; move the file, or give another --out"
            )


def _require_usable(facts: Checked) -> None:
    if facts.num_problems:
        raise CommandError(
            f"{facts.path}: {facts.problems[0]} ({facts.num_problems} problem(s); "
            f"`hintloop replay check {facts.path}` names them all)"
        )
    if not facts.turns:
        raise CommandError(f"{facts.path} holds no turn; record some, or give another file")


def _work(
    options: ReplayOptions, state: StateDir, store: Store, display: Display, loaded: dict[str, LoadedConfig]
) -> None:
    pending = [side for side in loaded if store.note(side, "done") is None]
    if not pending:
        display.line(f"{options.out} holds this replay already; its report is written anew (--fresh runs it again)")
        return
    supervisor = Supervisor(state.logs, display.process)

    async def work() -> None:
        try:
            await _sides(options, state, store, display, supervisor, pending)
        finally:
            trainers = [name for name in supervisor.running if name.startswith("trainer")]
            await supervisor.stop(*trainers)
            await supervisor.stop(*(name for name in supervisor.running if name != "redis"))
            await supervisor.stop("redis")

    level = loaded["a"].config.logging
    state.logs.mkdir(parents=True, exist_ok=True)
    with (state.logs / "replay.log").open("a", encoding="utf-8") as log, _logs_to(log, level):
        display.line(f"judge and teacher log to {state.logs / 'replay.log'}")
        try:
            signals.run(work(), supervisor.hurry)
        except signals.InterruptedRunError:
            display.line("interrupted; the same command goes on from here")
            raise


async def _sides(
    options: ReplayOptions,
    state: StateDir,
    store: Store,
    display: Display,
    supervisor: Supervisor,
    pending: Sequence[str],
) -> None:
    socket = redis_server.socket_path(state.path)
    await supervisor.start(redis_server.spec(state.path, socket))
    await supervisor.wait_ready("redis")
    place = Place(options.file.resolve(), state.path, f"unix://{socket}", options.until, store, supervisor)
    sources = options.sources
    most = max(one.load().config.topk_opd.top_k for one in sources.values())
    running = engines.Engines(supervisor, cast(EngineName, options.prm_engine), most)
    for name in pending:
        flags = dict(decided(sources[name].load()))
        flags |= await running.flags(replace(sources[name], flags=flags).load(), options.until)
        flags |= own_flags(sources[name].load().config, place, name)
        side = Side(name, replace(sources[name], flags=flags), place)
        telling = asyncio.create_task(_tell(side, display))
        try:
            await side.run(votes_of="a" if name == "b" else None)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            display.panel(None)


async def _tell(side: Side, display: Display) -> None:
    """Show how far a side is."""
    latest, told_s = funnel.Snapshot(), 0.0
    display.panel(lambda: funnel.funnel_table(latest))
    while True:
        with contextlib.suppress(DependencyError):
            latest = await side.look()
        told_s += REFRESH_S
        if told_s >= TELL_S and not display.console.is_terminal:
            told_s = 0.0
            steps = latest.steps
            shown = ", ".join(f"{name} {steps.get(name, 0)}" for name in ("linked", "judged", "scored", "trained"))
            display.line(f"side {side.name}: {shown}, dropped {sum(latest.drops.values())}")
        await asyncio.sleep(REFRESH_S)


@contextlib.contextmanager
def _logs_to(log: TextIO, section: LoggingSection) -> Iterator[None]:
    """What judge and teacher log goes to a file; standard error stays for people."""
    with contextlib.redirect_stderr(log):
        configure_logging("replay", section)
    try:
        yield
    finally:
        configure_logging("replay", section)
        structlog.reset_defaults()
        sys.stderr.flush()
