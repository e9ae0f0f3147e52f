"""What a loop shows at one moment, as far as a diagnosis is made from it; and what its configuration lets expect."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hintloop_contract.broker import StreamCounts, WeightsState
from hintloop_contract.config.needs import SignalNeeds, signal_needs
from hintloop_contract.config.schema import Config
from hintloop_contract.diagnosis.causes import Cause

#: Most reasons, details and texts kept as evidence.
MOST_EVIDENCE = 5

Evidence = dict[str, float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the configuration says of a healthy run."""

    needs: SignalNeeds
    dtype: str = "float32"
    session_timeout_s: float = 300.0
    max_staleness_steps: int = 4
    drop_without_hint: bool = True
    engine_urls: Sequence[str] = ()
    """Engines of the configuration; the status keeps earlier ones, too."""

    @classmethod
    def of(cls, config: Config, directory: Path | None = None) -> Expected:
        """From a configuration.

        Raises:
            ConfigError: the custom loss is not found, or declares no valid ``REQUIRES``.
        """
        return cls(
            needs=signal_needs(config, directory),
            dtype=config.model.dtype,
            session_timeout_s=config.rollout.session_timeout_sec,
            max_staleness_steps=config.training.max_staleness_steps,
            drop_without_hint=config.opd.drop_sample_without_hint,
            engine_urls=tuple(url.rstrip("/") for url in config.engine_urls),
        )


@dataclass(frozen=True, slots=True)
class Gaps:
    """Times between the end of an answer and the request that continues it, seconds, as the linker measured them.

    ``num_late`` continuations came after the session timeout; ``late_max_s`` is the longest of their gaps.
    """

    num: int = 0
    num_near: int = 0
    longest_s: float = 0.0
    num_late: int = 0
    late_max_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RedisRoom:
    """Bytes that Redis uses, and its ``maxmemory``; 0 where it has none."""

    used: int = 0
    most: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look. ``funnel`` and ``drops`` (by ``stage:reason``) count what happened in the window looked at."""

    funnel: Mapping[str, int] = field(default_factory=dict)
    drops: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of the newest drops by ``stage:reason``, newest first."""
    streams: Mapping[str, StreamCounts] = field(default_factory=dict)
    trainer: Mapping[str, str] = field(default_factory=dict)
    """The trainer's status; empty when it never reported."""
    weights: WeightsState = field(default_factory=WeightsState)
    engines: Mapping[str, str] = field(default_factory=dict)
    """Address of each engine to the version that it serves; empty text when it does not answer."""
    steps: Sequence[Mapping[str, float]] = ()
    """Figures of the newest steps, oldest first."""
    hashes: Sequence[tuple[int, str]] = ()
    """Step and hash of the weights of the released version's parent and of itself, as far as they are known."""
    hints: Sequence[tuple[str, str]] = ()
    """The newest hints, each with the next state that it was read from (empty when that is not known)."""
    scores: Sequence[int] = ()
    """The newest scores."""
    next_states: Sequence[str] = ()
    """Texts of the newest next states."""
    gaps: Gaps | None = None
    redis: RedisRoom = field(default_factory=RedisRoom)

    def figure(self, name: str) -> float | None:
        """A figure of the trainer's newest step; ``None`` when it is absent or no number."""
        return number(self.trainer.get(name, ""))

    @property
    def step(self) -> int:
        """Optimizer steps made."""
        return int(self.figure("step") or 0)

    def series(self, name: str) -> list[float]:
        """A figure over the newest steps that have it, oldest first."""
        return [value for step in self.steps if (value := step.get(name)) is not None and math.isfinite(value)]

    def dropped(self, *reasons: str) -> int:
        """Turns dropped for any of ``reasons`` at any stage."""
        return sum(count for name, count in self.drops.items() if name.partition(":")[2] in reasons)

    def details_of(self, reason: str) -> list[str]:
        """Details of the newest drops for ``reason``."""
        return [text for name, texts in self.details.items() if name.partition(":")[2] == reason for text in texts]


@dataclass(frozen=True, slots=True)
class Recognised:
    """A cause that the figures show. ``seen`` is one sentence; ``evidence`` the numbers behind it.

    ``grave``: no turn can become a right gradient before this is mended.
    """

    cause: Cause
    seen: str
    evidence: Evidence = field(default_factory=dict)
    grave: bool = False


def number(text: str) -> float | None:
    """``text`` as a finite number, or ``None``."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def shares(values: Sequence[object]) -> tuple[object, float]:
    """The most frequent of ``values`` (at least one), and its share."""
    value, count = Counter(values).most_common(1)[0]
    return value, count / len(values)
