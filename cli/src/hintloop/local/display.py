"""What a user sees of a stack: a table that lives on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

_STYLES = {"ready": "green", "done": "green", "died": "bold red", "stopping": "yellow", "stopped": "dim"}


class Display:
    """Processes with their states, and below them one panel of the caller's choice."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.started = time.monotonic()
        self._processes: dict[str, tuple[str, str]] = {}
        self._panel: Callable[[], RenderableType] | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(get_renderable=self._render, console=self.console, refresh_per_second=4, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def process(self, name: str, state: str, detail: str) -> None:
        """Take note of a process' state; a plain line where there is no terminal and the state changed."""
        before = self._processes.get(name, ("", ""))[0]
        self._processes[name] = (state, detail)
        if self._live is None and state != before:
            self.line(f"{name}: {state}{f' ({detail})' if detail else ''}")

    def line(self, text: str) -> None:
        """One line that stays, with the seconds since the start."""
        self.console.print(
            f"[{time.monotonic() - self.started:6.1f} s] {text}", markup=False, highlight=False, soft_wrap=True
        )

    def panel(self, render: Callable[[], RenderableType] | None) -> None:
        """What is drawn below the processes on a terminal, anew at each refresh."""
        self._panel = render

    def _render(self) -> RenderableType:
        table = Table(show_edge=False, pad_edge=False, show_header=False)
        for name, (state, detail) in self._processes.items():
            shown: RenderableType = Text(state, style=_STYLES.get(state, ""))
            if state == "starting":
                shown = Spinner("dots", text=state)
            table.add_row(name, shown, Text(detail, style="dim", overflow="ellipsis", no_wrap=True))
        elapsed = f"{time.monotonic() - self.started:.0f} s"
        parts: list[RenderableType] = [table, Text(elapsed, style="dim")]
        if self._panel is not None:
            parts[1:1] = ["", self._panel(), ""]
        return Group(*parts)
