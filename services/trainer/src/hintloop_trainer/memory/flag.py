"""The launcher's flag `--estimate`. Imports nothing heavy before it is asked."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hintloop_contract.config import LoadedConfig
from hintloop_contract.errors import HintloopError

ESTIMATE = "--estimate"


def without_estimate(arguments: Sequence[str]) -> tuple[list[str], int | None]:
    """Arguments without `--estimate`, and for how many processes it was asked; 0: as many as the layout needs.

    Raises:
        SystemExit: what follows it is no number of processes.
    """
    rest = [argument for argument in arguments if argument != ESTIMATE and not argument.startswith(f"{ESTIMATE}=")]
    asked = [argument for argument in arguments if argument not in rest]
    if not asked:
        return rest, None
    _, given, number = asked[-1].partition("=")
    if given and not (number.isdigit() and int(number)):
        raise SystemExit(f"hintloop_trainer: {asked[-1]}: give a number of processes, as in {ESTIMATE}=8")
    return rest, int(number or 0)


def print_estimate(loaded: LoadedConfig, world_size: int) -> int:
    """Print the estimate; the exit code: 1 when there is less memory than it says, or when it cannot be made."""
    from hintloop_trainer.memory.check import report

    try:
        found = report(loaded.config, directory=loaded.directory, world_size=world_size or None)
    except HintloopError as error:
        sys.stderr.write(f"hintloop_trainer: {error}\n")
        return 1
    sys.stdout.write(f"{found.text}\n")
    sys.stdout.writelines(f"{shortage}\n" for shortage in found.shortages)
    return 1 if found.shortages else 0
