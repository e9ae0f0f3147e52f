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

from hintloop_contract.config import parse_arguments
from hintloop_contract.errors import HintloopError
from hintloop_contract.logs import configure_logging, log_resolved

from hintloop_trainer.memory.flag import print_estimate, without_estimate


def main(reached: Callable[[Any], None] | None = None) -> int:
    """Run until done or told to end; 0 on a clean exit. ``reached`` is told of named moments (:mod:`points`)."""
    arguments, asked = without_estimate(sys.argv[1:])
    loaded = parse_arguments("hintloop_trainer", arguments)
    if asked is not None:
        return print_estimate(loaded, asked)
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


if __name__ == "__main__":
    sys.exit(main())
