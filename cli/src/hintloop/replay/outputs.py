"""What a replay leaves behind: a line a turn, the figures, and the report for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hintloop_contract.config import LoadedConfig
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from hintloop.replay.lines import Checked
from hintloop.replay.results import write_results
from hintloop.replay.store import Store
from hintloop.replay.summary import Agreement, SideFigures, summed_up
from hintloop.replay.tables import agreement_table, differing_table, side_tables, terminal
from hintloop.replay.until import Until
from hintloop.replay.writing import Written
from hintloop.report.runs import Run, read_run
from hintloop.report.tables import Table
from hintloop.trainer_files import METRICS_FILE

if TYPE_CHECKING:
    from hintloop.replay.run import ReplayOptions
    from hintloop.report.pages import Report

#: Steps whose tokens are looked at.
FIRST_STEPS = 100


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of all sides."""

    facts: Checked
    until: Until
    sides: list[SideFigures]
    agreement: Agreement | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the content of `summary.json`."""
        return {
            "file": str(self.facts.path),
            "sha256": self.facts.sha256,
            "turns": self.facts.turns,
            "until": self.until.value,
            "sides": {side.name: side.as_dict() for side in self.sides},
            "agreement": None if self.agreement is None else self.agreement.as_dict(),
        }

    def tables(self) -> RenderableType:
        """For a terminal."""
        shown: list[RenderableType] = []
        for side in self.sides:
            if len(self.sides) > 1:
                shown.append(Rule(Text(side.label), align="left"))
            shown += [terminal(table) for table in side_tables(side)]
        if self.agreement is not None:
            shown += [Rule("both"), terminal(agreement_table(self.agreement))]
        return Group(*shown)


def write_outputs(
    options: ReplayOptions, directory: Path, store: Store, facts: Checked, loaded: Mapping[str, LoadedConfig]
) -> Summary:
    """Write everything into ``directory``.

    Raises:
        CommandError: a file cannot be written.
    """
    labels = labels_of(options.compare, loaded)
    for name in labels:
        write_results(store, name, options.until, directory / f"results-{name}.jsonl")
    sides, agreement = summed_up(store, labels, options.until)
    summary = Summary(facts, options.until, sides, agreement)
    runs = {name: _run(directory / name, name) for name in labels}
    made = _report(summary, runs, loaded, directory)
    for name, text in (
        ("summary.json", json.dumps(summary.as_dict(), indent=2) + "\n"),
        ("report.html", made.html),
        ("report.md", made.markdown),
    ):
        with Written(directory / name) as written:
            written.write(text.encode())
    return summary


def labels_of(compare: Path | None, loaded: Mapping[str, LoadedConfig]) -> dict[str, str]:
    """What the sides are called."""
    labels = {"a": "a: as configured", "b": f"b: with {compare.name}" if compare is not None else ""}
    return {name: labels[name] for name in loaded}


def _run(directory: Path, label: str) -> Run | None:
    """What the side's trainer wrote; ``None`` where no step was made."""
    path = directory / METRICS_FILE
    if not path.is_file() or not path.stat().st_size:
        return None
    return read_run(directory, FIRST_STEPS, name=label)


def _tokenizer(loaded: LoadedConfig, directory: Path) -> Path:
    """The student's, by its newest weights where the model was not configured."""
    return Path(loaded.config.tokenizer_dir) if loaded.config.tokenizer_dir else directory / "weights" / "current"


def _report(
    summary: Summary, runs: Mapping[str, Run | None], loaded: Mapping[str, LoadedConfig], store_dir: Path
) -> Report:
    # Drawing imports the plotting library.
    from hintloop.replay.plots import replay_plots
    from hintloop.report.figures import Plot, plots
    from hintloop.report.pages import Section, make_page
    from hintloop.report.summary import comparison, settings, trained_tables
    from hintloop.report.token_classes import classifier

    classify = {name: classifier(_tokenizer(loaded[name], store_dir / name)) for name in loaded}
    sections = []
    for side in summary.sides:
        found: list[Table] = side_tables(side)
        run = runs[side.name]
        if run is not None:
            found += [*trained_tables(run, classify[side.name]), settings(run)]
        sections.append(Section(side.label, found))
    drawn: list[Plot] = replay_plots(summary.sides, summary.agreement)
    named = {name: run for name, run in runs.items() if run is not None}
    made = list(named.values())
    if made:
        drawn += plots(made, [classify[name] for name in named])
    compared = [agreement_table(summary.agreement)] if summary.agreement is not None else []
    if len(made) == 2:
        compared.append(comparison(*made))
    if summary.agreement is not None and summary.agreement.compares_scores and summary.agreement.examples:
        compared.append(differing_table(summary.agreement))
    outcome = ", ".join(f"{side.label}: {_outcomes(side)}" for side in summary.sides)
    lead = (
        f"{summary.facts.turns} recorded turns of {summary.facts.path.name}, as far as the {summary.until}. {outcome}"
    )
    return make_page(f"Replay of {summary.facts.path.name}", lead, compared, drawn, sections, note=bool(made))


def _outcomes(side: SideFigures) -> str:
    return ", ".join(f"{number} {name}" for name, number in side.outcomes.most_common())
