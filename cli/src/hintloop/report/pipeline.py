"""What became of a run's turns on their way to the trainer, and how its user liked the answers, where that is known.

Asked are, in this order: the demo's own report, a stack that runs there now, and the console's database.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hintloop_contract.config import load_config
from hintloop_contract.errors import HintloopError
from hintloop_contract.streams import FUNNEL

from hintloop.local.console import DATABASE

DEMO_REPORT, DEMO_ROUNDS = "report.json", "rounds.json"
ANSWER_TIMEOUT_S = 5.0

T = TypeVar("T", dict[str, Any], list[Any])


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Counts: funnel steps in order, and drops by reason."""

    steps: dict[str, int] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)

    @property
    def captured(self) -> int:
        """Turns that were captured at all."""
        return self.steps.get(FUNNEL[0], 0)


@dataclass(frozen=True, slots=True)
class Preference:
    """Shares of answers as the user wants them: held-out ones before and after, and the training answers by round."""

    before: dict[str, Any]
    after: dict[str, Any]
    rounds: list[dict[str, float]]
    """``satisfied``, ``joint`` and ``n`` of the answers that the model gave before each step."""


def read_pipeline(directory: Path) -> Pipeline | None:
    """What became of the turns of the run in ``directory``; ``None`` where nothing tells."""
    told = _json_of(directory / DEMO_REPORT, dict)
    if isinstance(told.get("dropped"), dict):
        steps = {name: int(told[name]) for name in FUNNEL if isinstance(told.get(name), int)}
        return Pipeline(steps, {str(reason): int(number) for reason, number in told["dropped"].items()})
    return _running(directory) or _of_console(_database(directory))


def read_preference(directory: Path) -> Preference | None:
    """How the demo's user liked the answers; ``None`` for a run of something else."""
    told = _json_of(directory / DEMO_REPORT, dict)
    before, after = told.get("preference_before"), told.get("preference_after")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return None
    return Preference(before, after, _json_of(directory / DEMO_ROUNDS, list))


def _json_of(path: Path, kind: type[T]) -> T:
    """What a file of the demo's holds; nothing where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return kind()
    return found if isinstance(found, kind) else kind()


def _running(directory: Path) -> Pipeline | None:
    """Counts of a stack that runs there now."""
    from hintloop.deployment import broker_of, decided_file
    from hintloop.funnel import Snapshot, take

    if decided_file(directory) is None:
        return None

    async def look() -> Snapshot:
        async with asyncio.timeout(ANSWER_TIMEOUT_S), broker_of(directory, []) as broker:
            return await take(broker)

    try:
        found = asyncio.run(look())
    except (HintloopError, TimeoutError):
        return None
    return Pipeline(found.steps, _by_reason(found.drops))


def _database(directory: Path) -> Path:
    """The console's database of the stack that ran there: where it was decided, unless the directory moved with it."""
    from hintloop.deployment import decided_file

    beside, decided = directory / DATABASE, decided_file(directory)
    if beside.is_file() or decided is None:
        return beside
    try:
        loaded = load_config([decided])
    except HintloopError:
        return beside
    return loaded.config.console.database if "console.database" in loaded.origins else beside


def _of_console(database: Path) -> Pipeline | None:
    """Drops that the console keeps, of a stack that does not run any more."""
    if not database.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            drops = connection.execute("SELECT reason, COUNT(*) FROM drops GROUP BY reason").fetchall()
    except sqlite3.Error:
        return None
    return Pipeline({}, dict(drops)) if drops else None


def _by_reason(drops: dict[str, int]) -> dict[str, int]:
    """Drops by reason alone, over all stages."""
    found: dict[str, int] = {}
    for place, number in drops.items():
        reason = place.partition(":")[2]
        found[reason] = found.get(reason, 0) + number
    return found
