"""`python -m benchmarks.doctor`: whether the doctor names what is wrong, on a local stack into which it is injected.

Runs the fault matrix of `tests/integration/faults`, every fault in two variants, and prints it. Goals: every fault is
named first, nothing is raised on the healthy stack, no run takes a minute. Written to `.hintloop/bench/doctor.json`;
the reports as they were printed lie beside it, in `doctor/`. `--keep` puts matrix and reports into the docs;
`--quick` takes the third that every run of the tests takes.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.doctor import matrix
from benchmarks.goals import REPORTS, Goal, print_goals, write_report
from tests.faults.catalogue import FAULTS
from tests.faults.fault import VARIANTS

ROOT = Path(__file__).parents[2]
TESTS = "tests/integration/faults"
OUTPUTS = REPORTS / "doctor"
PAGE = ROOT / "docs" / "fault-matrix.md"
FAULT_NAMES = [fault.name for fault in FAULTS]
NUM_CASES = len(FAULTS) * len(VARIANTS)
MARK = "<!-- measured: everything below is written by `python -m benchmarks.doctor --keep` -->"


def main() -> int:
    """Measure, print, write; 0 when it was measured."""
    parser = argparse.ArgumentParser(prog="benchmarks.doctor", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="write the matrix and the reports into docs/")
    parser.add_argument("--quick", action="store_true", help="a third of the faults, each in one variant")
    parser.add_argument("--show", action="store_true", help="what was measured before, without measuring again")
    options = parser.parse_args()
    if not options.show:
        measure(quick=options.quick)
    found = matrix.read(OUTPUTS)
    console = Console()
    console.print(matrix.table(found))
    goals = goals_of(found)
    print_goals("doctor", goals, console)
    write_report("doctor", goals, matrix=found.rows, false_alarms=found.num_false_alarms, healthy=found.healthy)
    if options.keep:
        keep(found)
    return 0 if found.rows and found.healthy else 1


def measure(*, quick: bool) -> None:
    """Run the tests; that one of them fails is a result."""
    shutil.rmtree(OUTPUTS, ignore_errors=True)
    OUTPUTS.mkdir(parents=True)
    command = [sys.executable, "-m", "pytest", TESTS, "-q", "--tb=no", "-p", "no:cacheprovider"]
    command += ["-m", "not slow"] if quick else []
    subprocess.run(command, cwd=ROOT, env={**os.environ, "HINTLOOP_FAULT_REPORTS": str(OUTPUTS)}, check=False)


def goals_of(found: matrix.Matrix) -> list[Goal]:
    """What the doctor is to reach."""
    # What was not measured was not named either.
    share = found.num_named / NUM_CASES if found.rows else None
    alarms = float(found.num_false_alarms) if found.healthy else None
    return [
        Goal("share of all variants named first", "at least", 1.0, share),
        Goal("causes raised on the healthy stack", "at most", 0.0, alarms),
        Goal("slowest report", "at most", 60.0, found.slowest_s, "s"),
    ]


def keep(found: matrix.Matrix) -> None:
    """Write the page's lower part, and the reports beside it."""
    folder = PAGE.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for report in sorted(OUTPUTS.glob("*.json")):
        shutil.copy(report, folder / report.name)
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    day = datetime.datetime.now(tz=datetime.UTC).date()
    told = (
        f"{len(found.rows)} of {NUM_CASES} variants measured, {found.num_named} of them named first, "
        f"{found.num_false_alarms} causes raised without a fault"
    )
    looks = [f"- {look['healthy']}: {', '.join(look['raised']) or 'nothing raised'}" for look in found.healthy]
    lines = [
        MARK,
        "",
        f"Measured on {day}: {told}.",
        "",
        *matrix.markdown(found.rows, FAULT_NAMES),
        "",
        "Without a fault:",
        "",
        *looks,
    ]
    PAGE.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
