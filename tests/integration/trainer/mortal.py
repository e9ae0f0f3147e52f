"""The trainer's process as it is started, except that it may end itself, as `kill -9` would, at a named moment.

One process imports what a trainer needs and forks a trainer for every line that it reads: importing takes far longer
than what is tested. It answers with the trainer's pid, and with its exit status when that ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from typing import Any

KILL_AT = "HINTLOOP_TEST_KILL_AT"
"""`point:n`: end when the n-th time has come; empty: live."""


class Mortal:
    """Told of every moment; ends the process at the one that it was given."""

    def __init__(self, kill_at: str) -> None:
        point, _, number = kill_at.partition(":")
        self._point, self._number = point, int(number or 0)
        self._seen: Counter[str] = Counter()

    def __call__(self, point: Any) -> None:
        self._seen[str(point)] += 1
        if str(point) == self._point and self._seen[str(point)] == self._number:
            os.kill(os.getpid(), signal.SIGKILL)


def live(config: str, kill_at: str, log: str) -> None:
    """A trainer's life, in a forked process."""
    from hintloop_trainer.__main__ import main

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ[KILL_AT] = kill_at
    sys.argv = ["hintloop_trainer", "--config", config]
    os._exit(main(Mortal(os.environ[KILL_AT])))


def serve() -> None:
    """Fork a trainer for every line of standard input."""
    import hintloop_trainer.wiring  # noqa: F401

    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            live(**json.loads(line))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
