"""`hintloop config show`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer
from hintloop_contract.config import load_config
from hintloop_contract.config.arguments import flags_of
from rich.console import Console
from rich.table import Table
from rich.text import Text


def run_config_show(files: Sequence[Path], settings: Sequence[Path], words: Sequence[str], *, as_json: bool) -> None:
    """Print every key with its value and origin; secrets are masked by the loader. ``words``: ``section.key=value``."""
    rows = load_config(files, settings=settings, flags=flags_of(words)).rows()
    if as_json:
        typer.echo(
            json.dumps({key: {"value": json.loads(value), "origin": origin} for key, value, origin in rows}, indent=2)
        )
        return
    console = Console()
    if not console.is_terminal:
        for key, value, origin in rows:
            typer.echo(f"{key} = {value}  # {origin}")
        return
    table = Table(show_edge=False, pad_edge=False)
    for column in ("key", "value", "origin"):
        table.add_column(column, overflow="fold")
    for key, value, origin in rows:
        table.add_row(Text(key), Text(value), Text(origin, style="dim" if origin == "default" else "bold"))
    console.print(table)
