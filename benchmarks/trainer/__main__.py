"""`python -m benchmarks.trainer`: speed and memory against transformers with AdamW, and how fast weights are served.

Goals: 1.3 times the tokens a second of the length-sorted baseline, in no more memory, on turns of ten agents' sessions.
Each contestant is a process of its own; they take turns, and medians are compared. Beside them stand turns that have
nothing in common. Written to `.hintloop/bench/trainer.json`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hintloop_contract.errors import HintloopError
from rich.console import Console
from rich.table import Table

from benchmarks.goals import Goal, print_goals, write_report
from benchmarks.model import model_dir
from benchmarks.trainer import contestant, publishing, samples
from benchmarks.trainer.peer import padding

ROOT = Path(__file__).parents[2]
WARM_UP, ROUNDS = 1, 3
#: No round is begun after this long, but one of each: the part has to end in ten minutes.
LAST_ROUND_S = 300.0
#: Takes part in the first round only: it is shown, and no goal.
ONCE = "transformers-unsorted"
HINTLOOP, BASELINE = "hintloop", "transformers-sorted"
GOAL_RATIO = 1.3
#: For which the baseline's padding is told.
BUDGETS, SEEDS = (1024, 2048, 4096, 8192), range(4)
SAME_LOSS = 1e-3


class Contestant:
    """One contestant's process."""

    def __init__(self, name: str, model: Path, sessions: int) -> None:
        """Start it; it is ready when its first line came."""
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "benchmarks.trainer.contestant",
            name,
            str(sessions),
            str(model),
        ]
        self.process = subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.name = name
        self._read()

    def step(self) -> dict[str, float]:
        """Make one step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None and self.process.stderr is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, float] = json.loads(line)
                return found
        raise SystemExit(f"{self.name} ended: {self.process.stderr.read()[-2000:]}")

    def close(self) -> None:
        """Let it end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def compare(model: Path, sessions: int, rounds: int, deadline: float, *names: str) -> dict[str, Any]:
    """Steps of ``names`` by turns, on a step's turns of so many sessions; what was measured of each."""
    contestants = [Contestant(name, model, sessions) for name in names]
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(WARM_UP + rounds):
        if number > WARM_UP and time.monotonic() > deadline:
            break
        for one in contestants:
            steps[one.name].append(one.step())
    for one in contestants:
        one.close()
    num_tokens = samples.num_tokens(contestant.turns(sessions))
    return {name: _summary(found, num_tokens) for name, found in steps.items()}


def ratio(measured: dict[str, Any], to: str, what: str = "tokens_per_second") -> float:
    """Hintloop's to another contestant's.

    Raises:
        SystemExit: they did not do the same.
    """
    ours, theirs = measured[HINTLOOP], measured[to]
    if abs(ours["first_loss"] - theirs["first_loss"]) > SAME_LOSS * max(1.0, abs(theirs["first_loss"])):
        raise SystemExit(
            f"the contestants do not do the same: first losses {ours['first_loss']}, {theirs['first_loss']}"
        )
    found: float = ours[what] / theirs[what]
    return found


def _summary(steps: list[dict[str, float]], num_tokens: int) -> dict[str, Any]:
    counted = steps[WARM_UP:]
    seconds = statistics.median(step["seconds"] for step in counted)
    return {
        "tokens_per_second": num_tokens / seconds,
        "seconds": [step["seconds"] for step in counted],
        "cpu_seconds": [step["cpu_seconds"] for step in counted],
        "peak_bytes": max(step["peak_bytes"] for step in steps),
        "first_loss": steps[0]["loss"],
        "first_grad_norm": steps[0]["grad_norm"],
    }


def _padding(sessions: int) -> dict[str, dict[str, float]]:
    """Positions that the sorted baseline computes for one real one, by budget and by seed of the samples."""
    made = {seed: contestant.turns(sessions, seed=seed) for seed in SEEDS}
    return {
        str(budget): {str(seed): padding(found, budget, ordered=True) for seed, found in made.items()}
        for budget in BUDGETS
    }


def _publishing(model: Path) -> dict[str, Any]:
    try:
        return publishing.run(model)
    except (publishing.NoEngineError, HintloopError) as error:
        # What was compared before stands, whatever happens to the engine.
        print(f"publishing was not measured: {error}", file=sys.stderr)
        return {"skipped": str(error)}


def _print(title: str, measured: dict[str, Any]) -> None:
    table = Table("contestant", "tokens/s", "processor s a step", "peak GB", title=title, title_justify="left")
    for name, row in measured.items():
        cpu = statistics.median(row["cpu_seconds"])
        table.add_row(name, f"{row['tokens_per_second']:.1f}", f"{cpu:.1f}", f"{row['peak_bytes'] / 1e9:.2f}")
    Console().print(table)


def main() -> None:
    """Measure, write, and print the goals."""
    model, deadline = model_dir(), time.monotonic() + LAST_ROUND_S
    # One at a time holds its memory beside the two that are compared. What is a goal comes first.
    measured = compare(model, contestant.SESSIONS, ROUNDS, deadline, HINTLOOP, BASELINE)
    measured |= compare(model, contestant.SESSIONS, 1, deadline, ONCE)
    unrelated = compare(model, contestant.NUM_SAMPLES, 1, deadline, HINTLOOP, BASELINE)
    published = _publishing(model)
    goals = [
        Goal("tokens_per_second_ratio", "at least", GOAL_RATIO, ratio(measured, BASELINE), "x"),
        Goal("peak_memory_ratio", "at most", 1.0, ratio(measured, BASELINE, "peak_bytes"), "x"),
    ]
    path = write_report(
        "trainer",
        goals,
        steps=measured,
        ratio_to_unsorted=ratio(measured, ONCE),
        unrelated_turns={"steps": unrelated, "ratio": ratio(unrelated, BASELINE)},
        padding=_padding(contestant.SESSIONS),
        publishing=published,
        samples=samples.__doc__,
    )
    print_goals("trainer", goals)
    _print(f"one step: {contestant.NUM_SAMPLES} turns of {contestant.SESSIONS} sessions", measured)
    _print(f"turns of {contestant.NUM_SAMPLES} sessions ({ratio(unrelated, BASELINE):.2f} times)", unrelated)
    if "seconds" in published:
        print(f"from the end of a step to the first answer by its weights: {published['seconds']:.1f} s")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
