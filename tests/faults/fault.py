"""What a fault is: a name, and two ways in which it comes about."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from .deployment import Deployment

#: Injects on entry, lifts on exit. What a command has to be given to see the same is in `Deployment.given`.
Injector = Callable[[Deployment], AbstractContextManager[None]]
Variant = Literal["primary", "second"]
VARIANTS: tuple[Variant, Variant] = ("primary", "second")


@dataclass(frozen=True, slots=True)
class Fault:
    """``trains``: it is seen after optimizer steps, so that it takes long."""

    name: str
    primary: Injector
    second: Injector
    trains: bool = False

    def injector(self, variant: Variant) -> Injector:
        """The way of this variant."""
        return self.primary if variant == "primary" else self.second
