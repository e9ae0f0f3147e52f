"""`hintloop link`: how recorded traffic is read. Owns output and exit code; the linker itself stands in the proxy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer
from hintloop_rollout_proxy.linking import LinkerOptions
from hintloop_rollout_proxy.linking.cases import CaseError, read_file
from hintloop_rollout_proxy.linking.report import report_on

#: A report tells whole sessions; segments only matter to training.
UNBOUNDED = 2**31


def run_link(paths: Sequence[Path], timeout_s: float) -> None:
    """Print one JSON line a file. A file that cannot be read is named on stderr, and the exit code is 2."""
    options = LinkerOptions(
        session_timeout_ms=int(timeout_s * 1000), max_turns_per_session=UNBOUNDED, max_requests=UNBOUNDED
    )
    failed = False
    for path in paths:
        try:
            report = report_on(*read_file(path), options)
        except CaseError as error:
            typer.echo(f"hintloop: {path}: {error}", err=True)
            failed = True
            continue
        typer.echo(msgspec.json.encode(report).decode())
    if failed:
        raise typer.Exit(2)
