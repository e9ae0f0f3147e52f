"""Errors of the command, named by boundary; `app` turns them into a message and an exit code."""

from __future__ import annotations

from pathlib import Path

from hintloop_contract.errors import HintloopError

#: Lines of a process' log that an error shows.
LOG_TAIL_LINES = 25


def log_tail(path: Path, num_lines: int = LOG_TAIL_LINES) -> str:
    """Last ``num_lines`` lines of a log, or a note that there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - 64 * 1024))
            text = stream.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return "(no log was written)"
    return "\n".join(text.splitlines()[-num_lines:]) or "(the log is empty)"


class CommandError(HintloopError):
    """What the user asked for cannot be done; the message says what to change."""


class StateDirError(CommandError):
    """The state directory is in use, absent, or not ours."""


class PromptFileError(CommandError):
    """A prompts file is wrong; the message names the line, the field and the fix."""


class InstallError(HintloopError):
    """An engine or model could not be prepared."""


class StackError(HintloopError):
    """The local stack cannot start or go on."""


class ProcessDiedError(StackError):
    """A process of the stack ended although nobody asked it to."""

    def __init__(self, name: str, cause: str, log_path: Path) -> None:
        super().__init__(f"{name} {cause}; the end of {log_path}:\n{log_tail(log_path)}")
        self.name = name
        self.cause = cause
        self.log_path = log_path


class NotReadyError(StackError):
    """A process did not become ready in time."""

    def __init__(self, name: str, timeout_s: float, seen: str, log_path: Path) -> None:
        super().__init__(
            f"{name} was not ready within {timeout_s:.0f} s ({seen}); the end of {log_path}:\n{log_tail(log_path)}"
        )
        self.name = name
        self.log_path = log_path


class DemoError(HintloopError):
    """The demo ended without what it promises."""
