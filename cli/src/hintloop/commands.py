"""The command line's options. What a command does stands in its own module, imported when it runs."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from hintloop.replay.until import Source, Until

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
config_app = typer.Typer(no_args_is_help=True)
app.add_typer(config_app, name="config", help="The configuration.")
dead_app = typer.Typer(no_args_is_help=True)
app.add_typer(dead_app, name="dead", help="Messages that failed repeatedly and were set aside.")
replay_app = typer.Typer(no_args_is_help=True)
app.add_typer(replay_app, name="replay", help="Recorded turns, run again through judge, teacher and trainer.")
keys_app = typer.Typer(no_args_is_help=True)
app.add_typer(keys_app, name="keys", help="API keys of agents and of callers of the PRM routes.")

#: Bounds of the demo's options: a day and a half of steps on two cores, what every random generator takes, a day.
MAX_STEPS = 1_000
MAX_SEED = 2**31 - 2
MAX_STEP_TIMEOUT_S = 86_400.0


class Engine(enum.StrEnum):
    """Engines that can be started on this machine."""

    VLLM = "vllm"
    SGLANG = "sglang"


class Method(enum.StrEnum):
    """Learning methods of the demo."""

    OPD = "opd"
    BINARY = "binary"
    COMBINE = "combine"
    TOPK = "topk"


class Door(enum.StrEnum):
    """Where a key is presented."""

    PROXY = "proxy"
    PRM = "prm"


Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        "--overlay",
        envvar="HINTLOOP_CONFIG",
        help="config.toml, then overlays; the last one wins.",
        show_default=False,
    ),
]
Settings = Annotated[
    list[Path] | None,
    typer.Option("--settings", envvar="HINTLOOP_SETTINGS", help="settings.json.", show_default=False),
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="One key, above all files and the environment."),
]
StatePath = Annotated[Path, typer.Option("--state-dir", help="Where the stack keeps what it writes.")]
ControlTimeout = Annotated[
    float, typer.Option("--timeout", min=1, max=MAX_STEP_TIMEOUT_S, help="Most seconds until the trainer has done it.")
]
PrmEngine = Annotated[Engine, typer.Option("--prm-engine", help="Engine that serves the frozen base model.")]


@app.command()
def up(
    files: Files = None,
    settings: Settings = None,
    keys: Keys = None,
    engine: Annotated[Engine | None, typer.Option(help="Policy engine; `rollout.engine` when not given.")] = None,
    prm_engine: PrmEngine = Engine.VLLM,
    state_dir: StatePath = Path(".hintloop"),
) -> None:
    """Start the whole local stack and keep it running until Ctrl-C."""
    from hintloop.up import run_up

    run_up(files or [], settings or [], keys or [], engine.value if engine else None, prm_engine.value, state_dir)


@app.command()
def status(
    state_dir: StatePath = Path(".hintloop"),
    files: Files = None,
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look every two seconds, in place, until Ctrl-C.")] = False,
) -> None:
    """Show what became of every captured turn, and the weights' versions."""
    from hintloop.errors import CommandError
    from hintloop.status import run_status

    if as_json and watch:
        raise CommandError("--json and --watch do not go together; call --json as often as you like")
    run_status(state_dir, files or [], settings or [], as_json=as_json, watch=watch)


@app.command()
def doctor(
    state_dir: StatePath = Path(".hintloop"),
    files: Files = None,
    settings: Settings = None,
    keys: Keys = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this station of the chain; may be given several times.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="One text to paste into an issue.")] = False,
    alone: Annotated[bool, typer.Option("--config-only", help="Look at the configuration; contact nothing.")] = False,
    active: Annotated[
        bool, typer.Option("--active", help="Publish the weights as they are, and go back to them, at the end.")
    ] = False,
) -> None:
    """Walk the chain from the configuration to the weights and name what is wrong, why, and the fix."""
    from hintloop.doctor.run import Wanted, run_doctor

    wanted = Wanted(only or [], keys or [], as_json=as_json, alone=alone, active=active, plain=plain)
    run_doctor(state_dir, files or [], settings or [], wanted)


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="The run: where training.checkpoint_dir lies.")] = Path(".hintloop"),
    against: Annotated[Path | None, typer.Option(help="Another run to compare with.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; `report` in the run when not given.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer directory, when the run does not say.")] = None,
    first: Annotated[int, typer.Option(min=1, help="Steps whose tokens are looked at; a hundred are kept.")] = 100,
) -> None:
    """Show what a run learned: advantages by token, hints, losses, drops; as a page and as Markdown."""
    from hintloop.report.run import run_report

    run_report(directory, against, out, tokenizer, first)


@app.command()
def rollback(
    version: Annotated[
        int | None, typer.Argument(min=1, max=2**53, help="The version to go back to.", show_default=False)
    ] = None,
    list_versions: Annotated[bool, typer.Option("--list", help="Show the versions that are kept.")] = False,
    state_dir: StatePath = Path(".hintloop"),
    files: Files = None,
    timeout: ControlTimeout = 300.0,
) -> None:
    """Serve an earlier version again, under a new number; training pauses until `hintloop resume`."""
    from hintloop.rollback import run_list, run_rollback

    if list_versions == (version is not None):
        raise typer.BadParameter("give a VERSION, or --list to see which are kept")
    if version is None:
        run_list(state_dir, files or [])
    else:
        run_rollback(state_dir, files or [], version, timeout)


@app.command()
def resume(state_dir: StatePath = Path(".hintloop"), files: Files = None, timeout: ControlTimeout = 300.0) -> None:
    """Train again after a rollback."""
    from hintloop.rollback import run_resume

    run_resume(state_dir, files or [], timeout)


@config_app.command("show")
def config_show(
    files: Files = None,
    settings: Settings = None,
    keys: Keys = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Print the resolved configuration and where each value came from, secrets masked."""
    from hintloop.config_show import run_config_show

    run_config_show(files or [], settings or [], keys or [], as_json=as_json)


Ids = Annotated[list[str] | None, typer.Argument(help="As `hintloop dead list` shows them.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="Every one of them.")]


@dead_app.command("list")
def dead_list(
    state_dir: StatePath = Path(".hintloop"),
    files: Files = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most messages shown, the oldest first.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line, with the traceback.")] = False,
) -> None:
    """Show what was set aside, and the error."""
    from hintloop.dead import run_dead_list

    run_dead_list(state_dir, files or [], limit, as_json=as_json)


@dead_app.command("requeue")
def dead_requeue(
    ids: Ids = None, everything: All = False, state_dir: StatePath = Path(".hintloop"), files: Files = None
) -> None:
    """Send messages again to where they failed, once the cause is mended."""
    from hintloop.dead import run_dead_requeue

    run_dead_requeue(state_dir, files or [], ids or [], everything=everything)


@dead_app.command("purge")
def dead_purge(
    ids: Ids = None, everything: All = False, state_dir: StatePath = Path(".hintloop"), files: Files = None
) -> None:
    """Forget messages for good."""
    from hintloop.dead import run_dead_purge

    run_dead_purge(state_dir, files or [], ids or [], everything=everything)


Turns = Annotated[Path, typer.Argument(help="Recorded turns, a JSON object a line.", show_default=False)]
TurnsOut = Annotated[Path, typer.Option("--out", "-o", help="The file to write.")]


@replay_app.command("run")
def replay_run(
    file: Turns,
    files: Files = None,
    settings: Settings = None,
    until: Annotated[Until, typer.Option(help="The last service that works on a turn.")] = Until.TRAINER,
    compare: Annotated[
        Path | None, typer.Option(help="An overlay: the file is run a second time with it, and both are compared.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where everything is written; an interrupted run goes on there.")] = Path(
        ".hintloop/replay"
    ),
    prm_engine: PrmEngine = Engine.VLLM,
    fresh: Annotated[bool, typer.Option("--fresh", help="Empty --out first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of tables.")] = False,
) -> None:
    """Run recorded turns again, offline: judge, teacher and trainer without agents; no engine is given weights."""
    from hintloop.replay.run import ReplayOptions, run_replay

    run_replay(
        ReplayOptions(
            file=file,
            files=files or [],
            settings=settings or [],
            until=until,
            compare=compare,
            out=out,
            prm_engine=prm_engine.value,
            fresh=fresh,
            as_json=as_json,
        )
    )


@replay_app.command("check")
def replay_check(
    file: Turns, as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False
) -> None:
    """Look at every line: what is wrong with it, and what of the file can be trained."""
    from hintloop.replay.check import run_check

    run_check(file, as_json=as_json)


@replay_app.command("export")
def replay_export(
    out: TurnsOut,
    state_dir: StatePath = Path(".hintloop"),
    files: Files = None,
    source: Annotated[Source, typer.Option("--from", help="Where turns are taken from.")] = Source.AUTO,
) -> None:
    """Write a deployment's turns to a file: those that its console keeps, or those that its Redis still holds."""
    from hintloop.replay.export import run_export

    run_export(state_dir, files or [], source, out)


@replay_app.command("import-openclaw")
def replay_import_openclaw(
    file: Annotated[Path, typer.Argument(help="OpenClaw-RL's record file (OPENCLAW_RECORD_FILE).")],
    out: TurnsOut,
    prm: Annotated[Path | None, typer.Option(help="Its judgements (OPENCLAW_PRM_RECORD_FILE).")] = None,
) -> None:
    """Write OpenClaw-RL's records as recorded turns. They hold no token ids: they can be judged, not trained."""
    from hintloop.replay.openclaw import run_import

    run_import(file, prm, out)


@keys_app.command("new")
def keys_new(
    tenant: Annotated[str, typer.Option(help="Whose traffic the key marks.")] = "default",
    name: Annotated[str, typer.Option(help="A word for people, written into the entry.")] = "",
    train: Annotated[bool, typer.Option("--train/--no-train", help="Whether its turns may be trained.")] = True,
    door: Annotated[Door, typer.Option("--for", help="Section of the entry: agents, or the PRM routes.")] = Door.PROXY,
) -> None:
    """Make an API key: print it once, and the entry with its hash for config.toml."""
    from hintloop.keys import run_keys_new

    run_keys_new(door.value, tenant=tenant, name=name, train=train)


@app.command()
def link(
    files: Annotated[list[Path], typer.Argument(help="Case files, or capture logs (`linker.capture_log`).")],
    session_timeout: Annotated[
        float, typer.Option(min=0.001, max=MAX_STEP_TIMEOUT_S, help="Seconds between turns; `session_timeout_sec`.")
    ] = 300.0,
) -> None:
    """Show how recorded traffic is read: sessions, links, side calls and retries, one JSON line a file."""
    from hintloop.link import run_link

    run_link(files, session_timeout)


@app.command()
def demo(
    steps: Annotated[int, typer.Option(min=1, max=MAX_STEPS, help="Optimizer steps.")] = 8,
    method: Annotated[Method, typer.Option(help="Learning method.")] = Method.OPD,
    engine: Annotated[Engine, typer.Option(help="Policy engine.")] = Engine.VLLM,
    prm_engine: PrmEngine = Engine.VLLM,
    eval_prompts: Annotated[
        Path | None, typer.Option(help="JSON lines with prompt and topic instead of the held-out prompts.")
    ] = None,
    eval_answers: Annotated[
        int, typer.Option(min=1, max=10_000, help="Held-out answers before and after, at least; questions repeat.")
    ] = 64,
    state_dir: StatePath = Path(".hintloop/demo"),
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the scripted user.")] = 0,
    step_timeout: Annotated[
        float, typer.Option(min=1, max=MAX_STEP_TIMEOUT_S, help="Most seconds for one step.")
    ] = 300.0,
) -> None:
    """Watch a model learn from its user's complaints: the whole loop on this machine."""
    from hintloop.demo.options import DemoOptions
    from hintloop.demo.run import run_demo

    run_demo(
        DemoOptions(
            steps=steps,
            method=method.value,
            engine=engine.value,
            prm_engine=prm_engine.value,
            eval_prompts=eval_prompts,
            eval_answers=eval_answers,
            state_dir=state_dir,
            seed=seed,
            step_timeout_s=step_timeout,
        )
    )
