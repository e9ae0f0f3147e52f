"""`python -m hintloop_trainer --config F`, alone or under torchrun.

With `--estimate` it prints what memory that would take and ends; with `--estimate=N` for N processes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from hintloop_contract.config import LoadedConfig, parse_arguments
from hintloop_contract.errors import HintloopError
from hintloop_contract.logs import configure_logging, log_resolved

ESTIMATE = "--estimate"


def main(reached: Callable[[Any], None] | None = None) -> int:
    """Run until done or told to end; 0 on a clean exit. ``reached`` is told of named moments (:mod:`points`)."""
    arguments, asked = _without_estimate(sys.argv[1:])
    loaded = parse_arguments("hintloop_trainer", arguments)
    if asked is not None:
        return _estimate(loaded, asked)
    log = configure_logging("trainer", loaded.config.logging)
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    if os.environ.get("RANK", "0") == "0":
        log_resolved(loaded)
    # Threads that wait by spinning would take the cores from the engines that share them.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from hintloop_trainer.wiring import train

    try:
        train(loaded.config, loaded.directory, stop, *([reached] if reached else []))
    except HintloopError as error:
        log.error("trainer ended", error=type(error).__name__, detail=str(error))
        return 1
    return 0


def _without_estimate(arguments: list[str]) -> tuple[list[str], int | None]:
    """Arguments without `--estimate`, and for how many processes it was asked; 0: as many as the layout needs."""
    rest = [argument for argument in arguments if argument != ESTIMATE and not argument.startswith(f"{ESTIMATE}=")]
    asked = [argument for argument in arguments if argument not in rest]
    if not asked:
        return rest, None
    _, given, number = asked[-1].partition("=")
    if given and not (number.isdigit() and int(number)):
        raise SystemExit(f"hintloop_trainer: {asked[-1]}: give a number of processes, as in {ESTIMATE}=8")
    return rest, int(number or 0)


def _estimate(loaded: LoadedConfig, world_size: int) -> int:
    """Print the estimate; 1 when there is less memory than it says, or when it cannot be made."""
    from hintloop_trainer.memory.check import report

    try:
        found = report(loaded.config, directory=loaded.directory, world_size=world_size or None)
    except HintloopError as error:
        sys.stderr.write(f"hintloop_trainer: {error}\n")
        return 1
    sys.stdout.write(f"{found.text}\n")
    sys.stdout.writelines(f"{shortage}\n" for shortage in found.shortages)
    return 1 if found.shortages else 0


if __name__ == "__main__":
    sys.exit(main())
