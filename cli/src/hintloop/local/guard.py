"""Runs one command so that nothing of it outlives us: `python -I -S guard.py PARENT_PID GRACE_S -- COMMAND...`.

The guard adopts whatever the command leaves behind (it is a subreaper) and ends all of it when the command
ends, when it gets SIGTERM, or when the process that started it dies, even by SIGKILL. A second SIGTERM ends
the grace. Its exit code is the command's (128 + signal when a signal ended it). Linux only, standard library
only: it starts in milliseconds and stays small beside every process of the stack.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: The parent pid of `/proc/<pid>/stat`, counted behind the command name in parentheses.
STAT_PARENT_FIELD = 1


def prctl(option: int, value: int) -> None:
    """Set a process attribute of this process."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def descendants(root: int) -> list[int]:
    """Pids of all living processes below ``root``, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[STAT_PARENT_FIELD]), []).append(int(entry.name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found.extend(below)
        queue.extend(below)
    return found


def send(pids: list[int], number: int) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def reap(watched: int) -> int | None:
    """Collect ended children; the exit code of ``watched`` when it is among them."""
    code: int | None = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == watched:
            code = os.waitstatus_to_exitcode(status)


class Guard:
    """One guarded command."""

    def __init__(self, parent: int, grace_s: float, command: list[str]) -> None:
        self.parent = parent
        self.grace_s = grace_s
        self.command = command
        self.num_stops = 0

    def start(self) -> int:
        """Start the command in a session of its own; its pid."""
        pid = os.fork()
        if pid == 0:
            os.setsid()
            # Should the guard itself be killed outright, its command still gets the chance to end in order.
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
            try:
                os.execvp(self.command[0], self.command)
            except OSError as error:
                os.write(2, f"cannot start {self.command[0]!r}: {error}\n".encode())
                os._exit(127)
        return pid

    def run(self) -> int:
        """Start the command and wait for its end, and for the end of all that it started."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        watched_signals = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
        signal.pthread_sigmask(signal.SIG_BLOCK, watched_signals)
        if os.getppid() != self.parent:
            return 0
        watched = self.start()
        code: int | None = None
        deadline: float | None = None
        while code is None:
            info = signal.sigtimedwait(watched_signals, 0.5)
            if info is not None and info.si_signo in (signal.SIGTERM, signal.SIGINT):
                self.num_stops += 1
                deadline = time.monotonic() + self.grace_s if deadline is None else 0.0
                if self.num_stops == 1:
                    send([watched], signal.SIGTERM)
            code = reap(watched)
            if code is None and deadline is not None and time.monotonic() >= deadline:
                send([watched, *descendants(os.getpid())], signal.SIGKILL)
        self.sweep()
        return code if code >= 0 else 128 - code

    def sweep(self) -> None:
        """End what the command left behind: two seconds to go by themselves, then SIGKILL."""
        started = time.monotonic()
        asked = False
        while left := descendants(os.getpid()):
            if time.monotonic() - started >= 2.0 or self.num_stops > 1:
                send(left, signal.SIGKILL)
            elif not asked:
                send(left, signal.SIGTERM)
                asked = True
            time.sleep(0.05)
            reap(-1)


def main(arguments: list[str]) -> int:
    """Entry point; exit code 2 on wrong arguments."""
    if len(arguments) < 4 or arguments[2] != "--":
        sys.stderr.write("usage: guard.py PARENT_PID GRACE_S -- COMMAND...\n")
        return 2
    return Guard(int(arguments[0]), float(arguments[1]), arguments[3:]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
