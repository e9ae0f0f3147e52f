"""`hintloop report`. Owns where runs are found and where the report goes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import typer

from hintloop.deployment import decided_file
from hintloop.errors import CommandError
from hintloop.report.runs import read_run
from hintloop.report.token_classes import classifier


def run_report(directory: Path, against: Path | None, out: Path | None, tokenizer: Path | None, first: int) -> None:
    """Write `report.html` and `report.md`, and say where.

    Raises:
        CommandError: a run cannot be read, or the report cannot be written.
    """
    # Reading the figures is quick; drawing them imports the plotting library.
    runs = [read_run(directory, first), *([read_run(against, first)] if against is not None else [])]
    from hintloop.report.pages import make

    made = make(runs, [classifier(tokenizer or tokenizer_of(run.directory)) for run in runs])
    target = out or directory / "report"
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, text in (("report.md", made.markdown), ("report.html", made.html)):
            aside = target / f".{name}.partial"
            aside.write_text(text, encoding="utf-8")
            aside.replace(target / name)
    except OSError as error:
        raise CommandError(f"--out {str(target)!r} cannot be written: {error}; give another directory") from error
    typer.echo(str(target / "report.html"))
    typer.echo(str(target / "report.md"))


def tokenizer_of(directory: Path) -> Path:
    """The student's directory by the newest weights of the run, else by the stack's configuration.

    Raises:
        CommandError: that cannot be read.
    """
    current = directory / "weights" / "current"
    if (current / "tokenizer.json").is_file():
        return current
    decided = decided_file(directory)
    if decided is not None:
        try:
            model = tomllib.loads(decided.read_text(encoding="utf-8")).get("model", {})
        except (OSError, ValueError) as error:
            raise CommandError(f"{decided} cannot be read: {error}; give --tokenizer") from error
        return Path(model.get("tokenizer_path") or model.get("student_model_path") or directory)
    return directory
