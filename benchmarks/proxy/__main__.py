"""Our proxy against none, against peers' style and against LiteLLM, on one core in one run, by turns.

Everything runs on that core: contestant, engine stand-in, load generator and Redis. Samples in which somebody else used
it are taken again; medians are over the repeats.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.goals import print_goals, write_report
from benchmarks.proxy.contestants import DIRECT, LITELLM, OURS, PEER, STARTS, Contestant, Site, make_site
from benchmarks.proxy.litellm_environment import ensure_litellm
from benchmarks.proxy.measure import CONNECTIONS, FOREIGN_LIMIT, MODES, Mode, Sample, take_sample
from benchmarks.proxy.processes import Core
from benchmarks.proxy.summary import Summary, find_goals, summarise
from benchmarks.proxy.wire import write_wire

SECONDS = {DIRECT: 1.0, OURS: 2.5, LITELLM: 3.0, PEER: 2.5}
OTHER_SECONDS = 2.0
ATTEMPTS = 3
#: Seconds after which no sample is repeated for having been disturbed, and after which no other is begun.
PATIENCE_S, END_S = 210.0, 330.0


def main() -> None:
    """Measure, print, write ``.hintloop/bench/proxy.json``."""
    parser = argparse.ArgumentParser(prog="benchmarks.proxy", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contestants", default=",".join(STARTS), help="comma-separated: %(default)s")
    parser.add_argument("--modes", default=",".join(mode.name for mode in MODES), help="comma-separated: %(default)s")
    options = parser.parse_args()
    names, console = options.contestants.split(","), Console()
    modes = [mode for mode in MODES if mode.name in options.modes.split(",")]
    if LITELLM in names:
        ensure_litellm()
    # Ended politely, it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    core = Core(max(os.sched_getaffinity(0)))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hintloop-bench-") as folder:
        try:
            site = make_site(core, Path(folder), write_wire(Path(folder)))
            contestants = [STARTS[name](site) for name in names]
            samples = take_all(site, contestants, modes, options.repeats, console)
        finally:
            core.stop()
    summary = summarise(samples)
    goals = find_goals(summary)
    print_summary(summary, console)
    print_goals("Goals", goals, console)
    path = write_report(
        "proxy",
        goals,
        medians=[dataclasses.asdict(row) for row in summary.rows],
        samples=[{**dataclasses.asdict(sample), "disturbed": sample.disturbed} for sample in samples],
        setting={
            "machine": platform.machine(),
            "processor": processor_name(),
            "core": core.number,
            "connections": CONNECTIONS,
            "repeats": options.repeats,
            "python": sys.version,
            "foreign_limit": FOREIGN_LIMIT,
            "seconds": round(time.monotonic() - began, 1),
        },
    )
    console.print(f"written to {path}")


def take_all(
    site: Site, contestants: list[Contestant], modes: list[Mode], repeats: int, console: Console
) -> list[Sample]:
    """Samples by turns: every mode of every contestant once, then again. Discarded ones are among them."""
    samples: list[Sample] = []
    began = time.monotonic()
    turns = itertools.product(range(repeats), modes, contestants)
    for repeat, mode, contestant in turns:
        if time.monotonic() - began > END_S:
            console.print("time is up; the last round is not whole")
            break
        for attempt in range(ATTEMPTS):
            sample = take_sample(site, contestant, mode, repeat, SECONDS.get(contestant.name, OTHER_SECONDS))
            samples.append(sample)
            console.print(describe(sample), highlight=False, soft_wrap=True)
            if not sample.disturbed or time.monotonic() - began > PATIENCE_S:
                break
            time.sleep(0.5 * attempt)
    return samples


def describe(sample: Sample) -> str:
    """One line for whoever waits."""
    cpu = "" if sample.cpu_ms is None else f", {sample.cpu_ms:.3f} ms CPU"
    note = f"  discarded: others used {sample.foreign:.0%} of the core" if sample.disturbed else ""
    return (
        f"{sample.repeat + 1} {sample.mode:<10} {sample.contestant:<18} {sample.per_second:8.0f}/s{cpu},"
        f" first {sample.first_p50:.1f}, whole {sample.done_p50:.1f} ms{note}"
    )


def print_summary(summary: Summary, console: Console) -> None:
    """Print a table a mode."""
    for mode in dict.fromkeys(row.mode for row in summary.rows):
        table = Table(
            title=f"{mode}: {CONNECTIONS} connections, medians; + is more than without a proxy", title_justify="left"
        )
        table.add_column("", no_wrap=True)
        for name in ("CPU ms", "per second", "+p50 ms", "+p99 ms", "+first p50", "+first p99"):
            table.add_column(name, justify="right")
        table.add_column("memory MB", justify="right")
        table.add_column("samples", justify="right")
        for row in summary.rows:
            if row.mode == mode:
                table.add_row(
                    row.contestant,
                    number(row.cpu_ms, 3),
                    number(row.per_second, 0),
                    number(row.added_p50, 1),
                    number(row.added_p99, 1),
                    number(row.added_first_p50, 1),
                    number(row.added_first_p99, 1),
                    number(row.memory_mb, 0),
                    f"{row.num_samples}{' disturbed' if row.disturbed else ''}",
                )
        console.print(table)


def number(value: float | None, digits: int) -> str:
    """A number for a table."""
    return "" if value is None else f"{value:,.{digits}f}"


def processor_name() -> str:
    """What Linux calls the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
