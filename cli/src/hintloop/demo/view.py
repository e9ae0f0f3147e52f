"""What is seen while the demo runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text

from hintloop import funnel
from hintloop.demo.preference import Rates

_BARS = " ▁▂▃▄▅▆▇█"


def bars(shares: list[float]) -> str:
    """Shares in [0, 1] as a row of bars."""
    return "".join(_BARS[round(min(1.0, max(0.0, share)) * (len(_BARS) - 1))] for share in shares)


@dataclass(slots=True)
class View:
    """State of the live panel."""

    steps: int
    step: int = 0
    phase: str = "starting"
    snapshot: funnel.Snapshot = field(default_factory=funnel.Snapshot)
    rounds: list[Rates] = field(default_factory=list)
    metrics: str = ""

    def render(self) -> RenderableType:
        """The panel."""
        parts: list[RenderableType] = [Text(f"step {self.step}/{self.steps}: {self.phase}", style="bold")]
        if self.metrics:
            parts.append(Text(self.metrics))
        if self.rounds:
            latest = self.rounds[-1]
            parts.append(
                Text(
                    f"training answers {bars([rates.joint for rates in self.rounds])} satisfied and on topic: "
                    f"{latest.joint:.0%} of the last {latest.n}"
                )
            )
        parts += ["", funnel.funnel_table(self.snapshot)]
        return Group(*parts)
