"""What takes the figures of each step."""

from __future__ import annotations

from typing import Protocol

#: One step's figures by name. Seconds, bytes, nats and shares between 0 and 1; what does not apply is left out.
Metrics = dict[str, float | int | str | None]


class Sink(Protocol):
    """Takes the figures of each step. Methods are called in one thread."""

    def begin(self, step: int) -> None:
        """Training goes on from ``step``: whatever was told of later ones is void."""
        ...

    def write(self, metrics: Metrics) -> None:
        """Take one step's figures; ``step`` is among them."""
        ...

    def close(self) -> None:
        """Finish what is still to be written."""
        ...
