"""The entry point: runs the command line and turns what comes out of it into a message and an exit code.

Imports nothing at its top that takes time: a Ctrl-C while the rest loads must end as one later does.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Console entry point. 1 for a failure, 2 for a wrong call, 128 + signal when interrupted."""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def _run() -> int:
    """Run the command that was called; the exit code."""
    import signal

    # Whoever started us may have SIGINT ignored (a shell's background job); Ctrl-C must work all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from hintloop_contract.errors import ConfigError, HintloopError
    from rich.console import Console

    from hintloop.commands import app
    from hintloop.errors import CommandError
    from hintloop.local.signals import InterruptedRunError
    from hintloop.terminal import harmless

    try:
        app()
    except InterruptedRunError as interrupted:
        return 128 + interrupted.number
    except HintloopError as error:
        said = harmless(f"hintloop: {error}")
        Console(stderr=True).print(said, style="red", markup=False, highlight=False, soft_wrap=True)
        return 2 if isinstance(error, CommandError | ConfigError) else 1
    return 0
